"""What a compiled program sends between chips: kind, dtype, bytes, and whether other work goes on meanwhile."""

import dataclasses
import math
import re
from collections.abc import Iterator

from bertjax.forecast.hlo import Array, Computation, Instruction, Module

_KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

# XLA for TPU spreads an asynchronous collective over several fusions, each with a copy of it that bears this number.
_CHAIN = re.compile(r'chain_id="(\d+)"')
# Between slices it becomes a pair of send and recv.
_BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="([A-Z_]+)"')


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective of one device.

    Attributes:
      kind: `all-gather`, `all-reduce`, `reduce-scatter`, `all-to-all` or `collective-permute`.
      dtype: such as "bf16"; the widest one, where several arrays go together.
      bytes: of the whole arrays: what a gather gives, what a reduction or exchange is given.
      group: how many devices take part.
      runs: how often.
      asynchronous: whether the device computes meanwhile.
      between_slices: whether it goes through the network of the data center.
    """

    kind: str
    dtype: str
    bytes: int
    group: int
    runs: int
    asynchronous: bool
    between_slices: bool = False

    @property
    def sent(self) -> float:
        """Bytes that each device sends, at the least, every time it runs."""
        if self.between_slices:  # a device exchanges its own share with those of the other slices
            return self.bytes
        share = (self.group - 1) / self.group
        return self.bytes * {"all-reduce": 2 * share, "collective-permute": 1}.get(self.kind, share)


def collectives(module: Module, devices: int) -> list[Collective]:
    """All collectives of a program, each once however many instructions it became.

    Args:
      module: the program of one device.
      devices: how many devices run it: a collective that names no group is of all of them.
    """
    found: dict[object, Collective] = {}
    for key, collective in _found(module, devices):
        if key not in found or collective.runs > found[key].runs:
            found[key] = collective
    return list(found.values())


def table(found: list[Collective]) -> list[Collective]:
    """Sums of those that differ only in bytes, groups and runs; the largest first. `runs` is how many there are."""
    rows: dict[tuple, list[Collective]] = {}
    for collective in found:
        key = (collective.kind, collective.dtype, collective.between_slices, collective.asynchronous)
        rows.setdefault(key, []).append(collective)
    summed = [
        dataclasses.replace(
            group[0],
            bytes=sum(one.bytes * one.runs for one in group),
            group=max(one.group for one in group),
            runs=sum(one.runs for one in group),
        )
        for group in rows.values()
    ]
    return sorted(summed, key=lambda row: -row.bytes)


def _found(module: Module, devices: int) -> Iterator[tuple[object, Collective]]:
    for computation, instruction, runs in module:
        kind = instruction.opcode.removesuffix("-start")
        if kind in _KINDS:
            chain = _CHAIN.search(instruction.attributes)
            key = chain[0] if chain else (computation.name, instruction.name)
            yield key, _within_slice(computation, instruction, kind, runs, devices)
        elif instruction.opcode == "send" and (between := _BETWEEN_SLICES.search(instruction.attributes)):
            array = instruction.arrays[0]
            kind = between[1].lower().replace("_", "-")
            key = (computation.name, instruction.name)
            yield key, Collective(kind, array.dtype, array.bytes, 0, runs, True, between_slices=True)


def _within_slice(computation: Computation, instruction: Instruction, kind: str, runs: int, devices: int) -> Collective:
    given = [
        array
        for name in instruction.operands
        if name in computation.instructions
        for array in computation.instructions[name].arrays
    ]
    group = _group_size(instruction, devices)
    # A start gives its operands, too.
    gives = [_times(array, group) for array in given] if kind == "all-gather" else given
    # What is scattered after it was reduced needs but a reduce-scatter, and that is what runs.
    scattered = kind == "all-reduce" and computation.name.startswith("all-reduce-scatter")
    return Collective(
        kind="reduce-scatter" if scattered else kind,
        dtype=max(given, key=lambda array: array.bytes).dtype,
        bytes=sum(array.bytes for array in gives),
        group=group,
        runs=runs,
        asynchronous=instruction.opcode.endswith("-start") or "chain_id" in instruction.attributes,
    )


def _times(array: Array, group: int) -> Array:
    return dataclasses.replace(array, shape=(group, *array.shape))


def _group_size(instruction: Instruction, devices: int) -> int:
    """Of `replica_groups`, which lists devices, counts them ([groups,size]<=...), or names axes of a mesh."""
    text = instruction.attributes.partition("replica_groups=")[2] or instruction.attributes.partition("pairs=")[2]
    if listed := re.match(r"\{\{([\d,]+)\}", text):
        return 2 if instruction.opcode.startswith("collective-permute") else listed[1].count(",") + 1
    if counted := re.match(r"\[\d+,(\d+)\]<=", text):
        return int(counted[1])
    if named := re.match(r"(?:mesh)?\[([^\]]*)\][^{]*\{([^}]*)\}", text):
        sizes = {axis: int(size) for axis, size in re.findall(r"'([^']+)'=(\d+)", named[1])}
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", named[2])
        return math.prod(int(part) if part else sizes[axis] for axis, part in axes)
    return devices
