"""Collectives in a compiled program: kind, dtype, bytes, and whether they overlap with computation."""

import dataclasses
import re
from collections.abc import Iterator, Sequence

import jax

from bertjax.forecast.groups import chip_of, devices_per_chip, first_group, share_of_links
from bertjax.forecast.hlo import Array, Computation, Instruction, Module

_KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

# XLA for TPU splits an asynchronous collective into several fusions, each with a copy that has this number.
_CHAIN = re.compile(r'chain_id="(\d+)"')
# A collective between slices becomes a pair of send and recv.
_BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="([A-Z_]+)"')


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective, as one device sees it.

    Attributes:
      kind: `all-gather`, `all-reduce`, `reduce-scatter`, `all-to-all` or `collective-permute`.
      dtype: for example "bf16"; if there are several arrays, the dtype of the largest one.
      bytes: size of the full arrays: the result of a gather, the operands of a reduction or exchange.
      group: participating devices.
      chips: chips that host the group.
      devices: devices per chip. All of them run the collective, maybe in different groups.
      runs: how often it executes.
      asynchronous: whether the device computes at the same time.
      between_slices: whether it uses the data center network.
      links: share of a chip's links that lead to other chips in the group.
    """

    kind: str
    dtype: str
    bytes: int
    group: int
    runs: int
    asynchronous: bool
    between_slices: bool = False
    links: float = 1.0
    chips: int = 1
    devices: int = 1

    @property
    def sent(self) -> float:
        """Lower bound on the bytes that each chip sends per run.

        The devices of a chip share its links. Data that all of them need arrives once, and data that all of them reduce
        is reduced on the chip first. The speed of that exchange is unpublished, so it counts as free.
        """
        if self.between_slices:  # each device exchanges its own shard with its counterparts in the other slices
            return self.bytes * self.devices
        if self.chips == 1:
            return 0.0
        # In a ring, each of n chips sends (n - 1) / n of the array. An all-reduce is a reduce-scatter followed by an
        # all-gather, so it sends twice as much.
        share = (self.chips - 1) / self.chips
        groups = self.devices * self.chips / self.group  # groups that share a chip's links
        per_chip = {
            "all-reduce": 2 * share * groups,
            "all-to-all": share * self.devices,  # no two devices send the same
            "collective-permute": self.devices,
        }
        return self.bytes * per_chip.get(self.kind, share * groups)


def collectives(module: Module, devices: Sequence[jax.Device]) -> list[Collective]:
    """Return the collectives in a program, each once, however many instructions implement it.

    Args:
      module: the program that each device runs.
      devices: devices that run it, indexed by the device numbers in the program.
    """
    # The pieces of a split collective share a key; keep the piece that runs most often.
    unique: dict[object, Collective] = {}
    for key, collective in _instances(module, devices):
        if key not in unique or collective.runs > unique[key].runs:
            unique[key] = collective
    return list(unique.values())


def table(collectives: list[Collective]) -> list[Collective]:
    """Merge collectives that differ only in bytes, groups and runs, and sort them by bytes, largest first."""
    summed = {"bytes": 0, "group": 0, "chips": 0, "runs": 0}
    rows: dict[Collective, list[Collective]] = {}
    for collective in collectives:
        rows.setdefault(dataclasses.replace(collective, **summed), []).append(collective)
    sums = [
        dataclasses.replace(
            row,
            bytes=sum(one.bytes * one.runs for one in group),
            group=max(one.group for one in group),
            chips=max(one.chips for one in group),
            runs=sum(one.runs for one in group),
        )
        for row, group in rows.items()
    ]
    return sorted(sums, key=lambda row: -row.bytes)


def _instances(module: Module, devices: Sequence[jax.Device]) -> Iterator[tuple[object, Collective]]:
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
            per_chip = devices_per_chip(devices)
            yield key, Collective(kind, array.dtype, array.bytes, 0, runs, True, between_slices=True, devices=per_chip)


def _within_slice(
    computation: Computation, instruction: Instruction, kind: str, runs: int, devices: Sequence[jax.Device]
) -> Collective:
    operands = [
        array
        for name in instruction.operands
        if name in computation.instructions
        for array in computation.instructions[name].arrays
    ]
    group = first_group(instruction, len(devices))
    # Sizes come from operands: a `-start` instruction repeats its operands among its results.
    arrays = [_times(array, len(group)) for array in operands] if kind == "all-gather" else operands
    # XLA for TPU emits a reduce-scatter as an all-reduce in a computation of this name.
    scattered = kind == "all-reduce" and computation.name.startswith("all-reduce-scatter")
    return Collective(
        kind="reduce-scatter" if scattered else kind,
        dtype=max(operands, key=lambda array: array.bytes).dtype,
        bytes=sum(array.bytes for array in arrays),
        group=len(group),
        runs=runs,
        links=share_of_links(group, devices),
        chips=len({chip_of(devices[number]) for number in group}),
        devices=devices_per_chip(devices),
        asynchronous=instruction.opcode.endswith("-start") or "chain_id" in instruction.attributes,
    )


def _times(array: Array, group: int) -> Array:
    return dataclasses.replace(array, shape=(group, *array.shape))
