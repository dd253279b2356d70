"""Packing: short examples share rows, so that few positions are padding.

Histogram packing (Krell, Kosec, Perez and Fitzgibbon, "Efficient sequence packing without cross-contamination",
arXiv 2107.02027, section 3.1) packs lengths, not examples. Only the number of examples of each length matters, so the
work does not grow with the number of examples. Lengths are packed from the longest to the shortest, each into the rows
with the least sufficient room. So a row has examples of similar lengths: few long ones, or many short ones.

`mixed` packs example by example in a random order, for losses that are a mean over examples. There an example among few
would have a larger weight than one among many.
"""

import bisect
import dataclasses
from collections import defaultdict

import numpy as np

from bertjax.data.random import bits


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Rows that hold examples of the same lengths.

    Attributes:
      rows: number of rows.
      lengths: (length, number of examples of this length in each row), longest first.
    """

    rows: int
    lengths: tuple[tuple[int, int], ...]

    @property
    def examples(self) -> int:
        """The number of examples in each row."""
        return sum(count for _, count in self.lengths)


def pack(histogram: np.ndarray, max_row_examples: int) -> list[Pattern]:
    """Return the patterns that best-fit decreasing gives for a histogram of lengths.

    Args:
      histogram: number of examples of each length 0..T, int [T + 1]; none has length 0.
      max_row_examples: largest number of examples in a row.

    Returns:
      The patterns, which together hold every example once. Their order depends only on the arguments.
    """
    open_rows = _OpenRows(max_row_examples)
    seq_len = len(histogram) - 1
    for length in range(seq_len, 0, -1):
        left = int(histogram[length])
        while left:
            room, pattern = open_rows.take_best(length) or (seq_len, Pattern(left, ()))
            per_row = min(room // length, max_row_examples - pattern.examples)
            filled, rest = min(pattern.rows, left // per_row), 0
            if filled < pattern.rows and filled * per_row < left:
                rest = left - filled * per_row  # one more row gets the rest
            used = filled + (rest > 0)
            open_rows.put(room - per_row * length, filled, (*pattern.lengths, (length, per_row)))
            open_rows.put(room - rest * length, used - filled, (*pattern.lengths, (length, rest)))
            if pattern.lengths:
                open_rows.put(room, pattern.rows - used, pattern.lengths)
            left -= filled * per_row + rest
    return open_rows.patterns


def assign(lengths: np.ndarray, patterns: list[Pattern], slots: int) -> np.ndarray:
    """Return the rows of patterns, filled with examples; examples of one length are used in their order.

    Args:
      lengths: tokens of each example, int [E]; their histogram is the one that `patterns` were made of.
      patterns: the result of `pack`.
      slots: N, at least as many as any pattern has examples.

    Returns:
      rows_RN, int32: the examples of each row, longest first, -1 for an empty slot.
    """
    # numpy sorts 16-bit numbers by radix, in time linear in their number.
    by_length = np.argsort(lengths.astype(np.uint16) if lengths.max() < 1 << 16 else lengths, kind="stable")
    next_of_length = np.cumsum(np.bincount(lengths)) - np.bincount(lengths)
    rows_RN = np.full((sum(pattern.rows for pattern in patterns), slots), -1, np.int32)
    row = 0
    for pattern in patterns:
        slot, stop = 0, row + pattern.rows
        for length, count in pattern.lengths:
            first, last = next_of_length[length], next_of_length[length] + pattern.rows * count
            rows_RN[row:stop, slot : slot + count] = by_length[first:last].reshape(-1, count)
            next_of_length[length] = last
            slot += count
        row = stop
    return rows_RN


def mixed(lengths: np.ndarray, seq_len: int, max_row_examples: int) -> np.ndarray:
    """Return rows of examples in a random order, each in the open row with the least sufficient room.

    Args:
      lengths: tokens of each example, int [E], at most T = `seq_len`.
      max_row_examples: largest number of examples in a row.

    Returns:
      rows_RN, int32: the examples of each row, -1 for an empty slot. They depend only on the arguments.
    """
    rows: list[list[int]] = []
    open_rows: list[list[int]] = [[] for _ in range(seq_len + 1)]  # by the room that they leave
    has_open = 0  # bit r: a row with room r can hold another example
    order = np.argsort(bits(0, "packing", 0, np.arange(len(lengths)), 0), kind="stable")
    for example, length in zip(order.tolist(), lengths[order].tolist()):
        if sufficient := has_open >> length:
            room = length + (sufficient & -sufficient).bit_length() - 1
            row = open_rows[room].pop()
            has_open ^= (not open_rows[room]) << room
        else:
            room, row = seq_len, len(rows)
            rows.append([])
        rows[row].append(example)
        room -= length
        if room and len(rows[row]) < max_row_examples:
            open_rows[room].append(row)
            has_open |= 1 << room
    slots = max(map(len, rows))
    return np.array([row + [-1] * (slots - len(row)) for row in rows], np.int32)


class _OpenRows:
    """Patterns by the room that they leave. Patterns that cannot hold another example are only kept for the result."""

    def __init__(self, max_row_examples: int):
        self._max_row_examples = max_row_examples
        self._rooms: list[int] = []  # ascending, of the patterns that can hold another example
        self._open: dict[int, list[Pattern]] = defaultdict(list)
        self._full: list[Pattern] = []

    def take_best(self, length: int) -> tuple[int, Pattern] | None:
        """Remove and return a pattern with the least room that holds `length`, and that room."""
        at = bisect.bisect_left(self._rooms, length)
        if at == len(self._rooms):
            return None
        room = self._rooms[at]
        pattern = self._open[room].pop()
        if not self._open[room]:
            del self._rooms[at]
        return room, pattern

    def put(self, room: int, rows: int, lengths: tuple[tuple[int, int], ...]) -> None:
        """Add rows that leave `room`, if there are any."""
        if not rows:
            return
        pattern = Pattern(rows, lengths)
        if room == 0 or pattern.examples == self._max_row_examples:
            self._full.append(pattern)
            return
        if not self._open[room]:
            bisect.insort(self._rooms, room)
        self._open[room].append(pattern)

    @property
    def patterns(self) -> list[Pattern]:
        """All patterns: the full ones, then the others by ascending room."""
        return self._full + [pattern for room in self._rooms for pattern in self._open[room]]
