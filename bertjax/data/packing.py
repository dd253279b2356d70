"""Packing: which short examples share a row, so that hardly a position is padding.

Histogram packing (Krell, Kosec, Perez and Fitzgibbon, "Efficient sequence packing without cross-contamination",
arXiv 2107.02027, section 3.1) packs lengths, not examples: how many examples have a length is all that matters, so its
work does not grow with their number. Lengths are taken from the longest to the shortest; each goes into the rows whose
room it fills best.
"""

import bisect
import dataclasses
from collections import defaultdict

import numpy as np


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Rows that hold examples of the same lengths.

    Attributes:
      rows: how many there are.
      lengths: of their examples, longest first, as (length, how many of it).
    """

    rows: int
    lengths: tuple[tuple[int, int], ...]

    @property
    def examples(self) -> int:
        """Examples in each of the rows."""
        return sum(count for _, count in self.lengths)


def pack(histogram: np.ndarray, most: int) -> list[Pattern]:
    """Best-fit decreasing over a histogram of lengths.

    Args:
      histogram: number of examples of each length 0..T, int [T + 1]; none has length 0.
      most: examples that may share a row.

    Returns:
      The patterns, in an order that follows from the arguments alone; together they hold every example once.
    """
    opened = _OpenRows(most)
    seq_len = len(histogram) - 1
    for length in range(seq_len, 0, -1):
        left = int(histogram[length])
        while left:
            room, pattern = opened.take_best(length) or (seq_len, Pattern(left, ()))
            each = min(room // length, most - pattern.examples)
            filled, rest = min(pattern.rows, left // each), 0
            if filled < pattern.rows and filled * each < left:
                rest = left - filled * each  # one more row takes what is left
            used = filled + (rest > 0)
            opened.put(room - each * length, filled, (*pattern.lengths, (length, each)))
            opened.put(room - rest * length, used - filled, (*pattern.lengths, (length, rest)))
            if pattern.lengths:
                opened.put(room, pattern.rows - used, pattern.lengths)
            left -= filled * each + rest
    return opened.patterns


def assign(lengths: np.ndarray, patterns: list[Pattern], slots: int) -> np.ndarray:
    """Gives the places of the patterns to examples; those of one length are used in their order.

    Args:
      lengths: tokens of each example, int [E], with the histogram that the patterns were made for.
      patterns: what `pack` gave.
      slots: N, at least as many as any pattern has examples.

    Returns:
      rows_RN, int32: the examples of each row, longest first, -1 for none.
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


class _OpenRows:
    """Patterns by the room that they leave. Those that can take no more example are kept, but never found again."""

    def __init__(self, most: int):
        self._most = most
        self._rooms: list[int] = []  # ascending, those with a pattern that takes more
        self._open: dict[int, list[Pattern]] = defaultdict(list)
        self._full: list[Pattern] = []

    def take_best(self, length: int) -> tuple[int, Pattern] | None:
        """Removes and returns a pattern with the least room that holds `length`, and that room."""
        at = bisect.bisect_left(self._rooms, length)
        if at == len(self._rooms):
            return None
        room = self._rooms[at]
        pattern = self._open[room].pop()
        if not self._open[room]:
            del self._rooms[at]
        return room, pattern

    def put(self, room: int, rows: int, lengths: tuple[tuple[int, int], ...]) -> None:
        """Adds rows that leave `room`, if any."""
        if not rows:
            return
        pattern = Pattern(rows, lengths)
        if room == 0 or pattern.examples == self._most:
            self._full.append(pattern)
            return
        if not self._open[room]:
            bisect.insort(self._rooms, room)
        self._open[room].append(pattern)

    @property
    def patterns(self) -> list[Pattern]:
        """All of them: the full ones, then the others by ascending room."""
        return self._full + [pattern for room in self._rooms for pattern in self._open[room]]
