"""Chunks that fill a row: as many whole sentences as needed, cut in two between random sentences."""

import dataclasses
from typing import ClassVar

import numpy as np

from bertjax.data.formats.pairs import Chunks, PairFormat, Share, below
from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class SegmentFormat(PairFormat):
    """Pairs of segments, each one sentence or more.

    Attributes:
      short_seq_prob: share of the pairs with a random shorter target length, because fine-tuning inputs are often
        short.
      fewest: the fewest sentences of a chunk, if its document has as many left.
    """

    short_seq_prob: float = 0.1
    fewest: ClassVar[int] = 2

    def __post_init__(self):
        super().__post_init__()
        check_share("short_seq_prob", self.short_seq_prob)

    def chunks(self, bounds: np.ndarray, first: np.ndarray, ends: np.ndarray, room: int, share: Share) -> Chunks:
        is_short = share("short", first) < self.short_seq_prob
        target = np.where(is_short, 2 + below(share("length", first), room - 1), room)
        stop = np.maximum(np.searchsorted(bounds, bounds[first] + target), first + self.fewest)
        stop = np.minimum(stop, ends)
        middle = first + 1 + below(share("split", first), stop - first - 1)
        return Chunks(first, middle, stop, target)


def check_share(field: str, value: float) -> None:
    """Raise UserError if a share is not between 0 and 1."""
    if not 0.0 <= value <= 1.0:
        raise UserError(f"examples.{field}={value} must be between 0 and 1")
