"""Which devices take part in a collective, and how many links of a chip lead to the others."""

import math
import re
from collections.abc import Sequence

import jax
import numpy as np

from bertjax.forecast.hlo import Instruction

# A permutation of numbers from 0, such as [4,16] or [4,16]T(1,0): the numbers in an array of this shape, transposed.
_NUMBERS = r"\[([\d,]+)\](?:T\(([\d,]+)\))?"


def first_group(instruction: Instruction, devices: int) -> tuple[int, ...]:
    """Return the numbers of the devices of the first of `replica_groups`; of a permutation, its first pair.

    Groups are lists of devices, [groups,size]<=[shape]T(order), or axes of a mesh. Without any, all devices are one.
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
    """Return the share of a chip's links that lead to other devices of its group; 1 if they are on one chip.

    The chips of a slice are a grid, and each has links along every axis. A group that spans only some of the axes
    leaves the links along the others idle.
    """
    axes = _axes([devices[number] for number in group])
    of_slice = _axes([one for one in devices if _slice(one) == _slice(devices[group[0]])])
    return axes / of_slice if axes else 1.0


def chip_of(device: jax.Device) -> tuple[int, ...]:
    """Return the place of a device's chip: its slice, and its coordinates there."""
    return (_slice(device), *device.coords)


def devices_per_chip(devices: Sequence[jax.Device]) -> int:
    """Return how many of the devices are on one chip."""
    return len(devices) // len(set(map(chip_of, devices)))


def _axes(devices: Sequence[jax.Device]) -> int:
    """Return the number of axes along which devices differ."""
    return sum(len(set(places)) > 1 for places in zip(*(device.coords for device in devices)))


def _slice(device: jax.Device) -> int:
    return getattr(device, "slice_index", 0)


def _along(numbers: np.ndarray, sizes: dict[str, int], parts: dict[str, tuple[int, int]]) -> tuple[int, ...]:
    """Return the devices of a mesh that differ from the first one only in parts of axes {axis: (before, size)}."""
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
