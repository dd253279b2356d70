"""Collectives in a compiled program: kind, dtype, bytes, and whether they overlap with computation.

The share of a chip's links that a collective can use follows from its groups of devices.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence

import jax
import numpy as np

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


# An iota tile assignment, such as [4,16] or [4,16]T(1,0): arange reshaped to this shape, then transposed.
_NUMBERS = r"\[([\d,]+)\](?:T\(([\d,]+)\))?"


def first_group(instruction: Instruction, devices: int) -> tuple[int, ...]:
    """Return the device numbers in the first replica group, or in the first pair of a permutation.

    XLA prints groups as lists of devices, as [groups,size]<=[shape]T(order), or as mesh axes. Without replica groups,
    all devices form one group. All groups have the same size and layout, so the first one stands for the others.
    """
    text = instruction.attributes.partition("replica_groups=")[2] or instruction.attributes.partition("pairs=")[2]
    if listed := re.match(r"\{\{([\d,]+)\}", text):
        return tuple(_integers(listed[1]))
    if split := re.match(rf"\[\d+,(\d+)\]<={_NUMBERS}", text):
        return tuple(_numbers(split[2], split[3]).ravel()[: int(split[1])].tolist())
    if mesh := re.match(rf"(?:mesh)?\[([^\]]*)\](?:, device_ids=\({_NUMBERS}\))?[^{{]*\{{([^}}]*)\}}", text):
        sizes = {axis: int(size) for axis, size in re.findall(r"'([^']+)'=(\d+)", mesh[1])}
        numbers = _numbers(mesh[2] or str(math.prod(sizes.values())), mesh[3])
        # A part of an axis is written 'axis':(size of the parts before it)size.
        found = re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", mesh[4])
        parts = {axis: (int(before or 1), int(size or sizes[axis])) for axis, before, size in found}
        return _along(numbers, sizes, parts)
    return tuple(range(devices))


def share_of_links(group: Sequence[int], devices: Sequence[jax.Device]) -> float:
    """Return the share of a chip's links that lead to other devices in its group; 1 if the group is on one chip.

    The chips in a slice form a grid with links along every axis. A group that spans only some axes leaves the links
    along the other axes idle.
    """
    axes = _axes([devices[number] for number in group])
    of_slice = _axes([one for one in devices if _slice(one) == _slice(devices[group[0]])])
    return axes / of_slice if axes else 1.0


def chip_of(device: jax.Device) -> tuple[int, ...]:
    """Return a key for the chip that a device belongs to: its slice, then its coordinates in the slice."""
    return (_slice(device), *device.coords)


def devices_per_chip(devices: Sequence[jax.Device]) -> int:
    """Return the number of devices per chip."""
    return len(devices) // len(set(map(chip_of, devices)))


def _axes(devices: Sequence[jax.Device]) -> int:
    """Return the number of grid axes along which the devices differ."""
    return sum(len(set(places)) > 1 for places in zip(*(device.coords for device in devices)))


def _slice(device: jax.Device) -> int:
    return getattr(device, "slice_index", 0)


def _along(numbers: np.ndarray, sizes: dict[str, int], parts: dict[str, tuple[int, int]]) -> tuple[int, ...]:
    """Return the devices that differ from the first one only along the given parts of axes {axis: (before, size)}."""
    # Each axis is split into three, (before, own, after); the group varies along `own` and stays at 0 elsewhere.
    shape, chosen = [], []
    for axis, size in sizes.items():
        before, own = parts.get(axis, (1, 1))
        shape += [before, own, size // (before * own)]
        chosen += [0, slice(None), 0]
    return tuple(numbers.reshape(shape)[tuple(chosen)].ravel().tolist())


def _numbers(shape: str, order: str | None) -> np.ndarray:
    numbers = np.arange(math.prod(_integers(shape))).reshape(_integers(shape))
    return numbers.transpose(_integers(order)) if order else numbers


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
