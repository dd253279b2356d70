"""Device groups of collectives, and the share of a chip's links that each group can use."""

import math
import re
from collections.abc import Sequence

import jax
import numpy as np

from bertjax.forecast.hlo import Instruction

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
