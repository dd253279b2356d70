"""Packing: several short examples share a row, so that little of it is padding.

Histogram packing (Krell, Kosec, Perez and Fitzgibbon, "Efficient sequence packing without cross-contamination",
arXiv 2107.02027, section 3.1) packs lengths instead of examples. Only the histogram of lengths matters, so the work
does not grow with the number of examples. Lengths are packed from longest to shortest, each into the rows with the
least sufficient room (best fit decreasing). So the examples in a row have similar lengths: few long ones, or many short
ones.

`mixed` packs example by example in random order, for losses that average over a batch's examples. If each row had
similar lengths, an example in a row with few others would weigh more than one in a row with many.
"""

import bisect
import dataclasses
from collections import defaultdict

import numpy as np

from bertjax.data.random import bits


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A number of rows with the same example lengths.

    Attributes:
      rows: how many rows have these lengths.
      lengths: pairs of a length and its number of examples per row, longest first.
    """

    rows: int
    lengths: tuple[tuple[int, int], ...]

    @property
    def examples(self) -> int:
        """Examples per row."""
        return sum(count for _, count in self.lengths)


def pack(histogram: np.ndarray, max_row_examples: int) -> list[Pattern]:
    """Pack a length histogram by best fit decreasing.

    Args:
      histogram: examples per length 0..T, int [T + 1]; none has length 0.
      max_row_examples: most examples in a row.

    Returns:
      Patterns that together hold every example once. Their order depends only on the arguments.
    """
    open_rows = _OpenRows(max_row_examples)
    seq_len = len(histogram) - 1
    for length in range(seq_len, 0, -1):
        left = int(histogram[length])
        while left:
            room, pattern = open_rows.take_best(length) or (seq_len, Pattern(left, ()))
            # As many examples of this length as fit; what remains open may still take shorter ones.
            per_row = min(room // length, max_row_examples - pattern.examples)
            filled, rest = min(pattern.rows, left // per_row), 0
            if filled < pattern.rows and filled * per_row < left:
                rest = left - filled * per_row  # one more row gets the rest
            used = filled + (rest > 0)
            open_rows.put(room - per_row * length, filled, (*pattern.lengths, (length, per_row)))
            open_rows.put(room - rest * length, used - filled, (*pattern.lengths, (length, rest)))
            # Rows that were not needed keep their room. Those of a new pattern are not kept, because they are empty.
            if pattern.lengths:
                open_rows.put(room, pattern.rows - used, pattern.lengths)
            left -= filled * per_row + rest
    return open_rows.patterns


def assign(lengths: np.ndarray, patterns: list[Pattern], slots: int) -> np.ndarray:
    """Fill rows with examples by their patterns. Equally long examples are used in order.

    Args:
      lengths: tokens per example, int [E], with the histogram that `pack` received.
      patterns: returned by `pack`.
      slots: N, at least the most examples in any pattern.

    Returns:
      rows_RN, int32: examples per row, longest first, -1 for an empty slot.
    """
    # numpy sorts 16-bit integers by radix, in linear time.
    by_length = np.argsort(lengths.astype(np.uint16) if lengths.max() < 1 << 16 else lengths, kind="stable")
    next_of_length = np.cumsum(np.bincount(lengths)) - np.bincount(lengths)
    rows_RN = np.full((sum(pattern.rows for pattern in patterns), slots), -1, np.int32)
    row = 0
    for pattern in patterns:
        slot, stop = 0, row + pattern.rows
        for length, count in pattern.lengths:
            first, last = next_of_length[length], next_of_length[length] + pattern.rows * count
            # The next examples of this length, `count` to a row, for all rows of the pattern at once.
            rows_RN[row:stop, slot : slot + count] = by_length[first:last].reshape(-1, count)
            next_of_length[length] = last
            slot += count
        row = stop
    return rows_RN


def mixed(lengths: np.ndarray, seq_len: int, max_row_examples: int) -> np.ndarray:
    """Pack examples in random order, each into the open row with the least sufficient room.

    Args:
      lengths: tokens per example, int [E], at most T = `seq_len`.
      max_row_examples: most examples in a row.

    Returns:
      rows_RN, int32: examples per row, -1 for an empty slot. They depend only on the arguments.
    """
    rows: list[list[int]] = []
    open_rows: list[list[int]] = [[] for _ in range(seq_len + 1)]  # by remaining room
    has_open = 0  # bit r is set if a row with room r can hold another example; its lowest bit is the best fit
    # A fixed seed instead of the run's: the result depends on the arguments only.
    order = np.argsort(bits(0, "packing", 0, np.arange(len(lengths)), 0), kind="stable")
    for example, length in zip(order.tolist(), lengths[order].tolist()):
        if sufficient := has_open >> length:
            # `x & -x` isolates the lowest set bit: the least sufficient room, found without a search.
            room = length + (sufficient & -sufficient).bit_length() - 1
            row = open_rows[room].pop()
            # Clear the bit of this room if its last open row was taken.
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
    """Patterns by remaining room. Patterns that cannot hold another example are only kept for the result."""

    def __init__(self, max_row_examples: int):
        self._max_row_examples = max_row_examples
        self._rooms: list[int] = []  # ascending, of patterns that can hold another example
        self._open: dict[int, list[Pattern]] = defaultdict(list)
        self._full: list[Pattern] = []

    def take_best(self, length: int) -> tuple[int, Pattern] | None:
        """Remove a pattern with the least room for `length`; return the room and the pattern."""
        at = bisect.bisect_left(self._rooms, length)
        if at == len(self._rooms):
            return None
        room = self._rooms[at]
        pattern = self._open[room].pop()
        if not self._open[room]:
            del self._rooms[at]
        return room, pattern

    def put(self, room: int, rows: int, lengths: tuple[tuple[int, int], ...]) -> None:
        """Add `rows` rows with remaining `room`; nothing for 0 rows."""
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
        """All patterns: full ones first, then by ascending room."""
        return self._full + [pattern for room in self._rooms for pattern in self._open[room]]
