"""Pair formats with chunks that fill a row: as many whole sentences as needed, cut in two at a random boundary."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from bertjax.data.formats.pairs import NEXT, RANDOM, PairFormat
from bertjax.data.formats.partners import Chunks, Range, Share, below, in_another_with_room
from bertjax.runtime.setting import setting


@dataclasses.dataclass(frozen=True)
class SegmentFormat(PairFormat):
    """Segment pairs; each segment is one sentence or more.

    Attributes:
      short_seq_prob: share of pairs with a random shorter target length, because fine-tuning inputs are often short.
      fewest: minimum sentences per chunk, if the document has that many left.
    """

    short_seq_prob: float = setting(0.1, least=0, most=1)
    fewest: ClassVar[int] = 2

    def target(self, first: np.ndarray, room: int, share: Share) -> np.ndarray:
        """Draw the target pair length for a chunk starting at each sentence; int64 [S], 2 to `room`."""
        is_short = share("short", first) < self.short_seq_prob
        # At least 2, one token for each segment.
        return np.where(is_short, 2 + below(share("length", first), room - 1), room)

    def chunks(self, bounds: np.ndarray, first: np.ndarray, ends: np.ndarray, room: int, share: Share) -> Chunks:
        """Cut each chunk at a sentence boundary, uniformly at random (Devlin et al. 2019)."""
        target = self.target(first, room, share)
        # The chunk ends with the sentence that reaches the target; what exceeds the row is trimmed later.
        stop = np.maximum(np.searchsorted(bounds, bounds[first] + target), first + self.fewest)
        stop = np.minimum(stop, ends)
        middle = first + 1 + below(share("split", first), stop - first - 1)
        return Chunks(first, middle, stop, np.maximum(target - (bounds[middle] - bounds[first]), 1))


@dataclasses.dataclass(frozen=True)
class OrderFormat(SegmentFormat):
    """Segment pairs labeled by order: segment lengths must not reveal which one came first.

    In `SegmentFormat` a chunk ends with the sentence that reaches the target. That sentence is longer than average
    (length-biased sampling), and it is always in the second run. Here both runs end with such a sentence: the first
    gets a random share of the target, the second the rest, and each takes the fewest sentences that reach its share. A
    random B leaves room for its share, so that it does not end early with its document.
    """

    version: ClassVar[int] = 4
    places: ClassVar[dict[int, Callable[..., Range]]] = {RANDOM: in_another_with_room}

    def chunks(self, bounds: np.ndarray, first: np.ndarray, ends: np.ndarray, room: int, share: Share) -> Chunks:
        target = self.target(first, room, share)
        one = 1 + below(share("split", first), target - 1)
        middle = np.minimum(np.searchsorted(bounds, bounds[first] + one), ends)
        stop = np.searchsorted(bounds, bounds[middle] + target - one)
        # A document's rest that is too short for both shares is cut at a random sentence boundary.
        is_rest = stop > ends
        middle = np.where(is_rest, first + 1 + below(share("rest", first), ends - first - 1), middle)
        return Chunks(first, middle, np.minimum(stop, ends), target - one)


@dataclasses.dataclass(frozen=True)
class SegmentPairs(SegmentFormat):
    """Two segments that fill a row together, each whole sentences. Label `is_random`: 1 if B is from another document.

    Attributes:
      random_next: share of pairs with a B from another document. Single-sentence chunks also get a random B, as in
        BERT, so the total share is higher.
      fewest: minimum sentences per chunk, if the document has that many left. With 1, as in BERT, a sentence that fills
        a row is a chunk by itself. If most sentences do, most pairs are random; 2 then balances the labels.
    """

    kind: str = dataclasses.field(init=False, default="segment_pairs")
    random_next: float = setting(0.5, least=0, most=1)
    labels: ClassVar[tuple[str, ...]] = ("is_random",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, RANDOM)
    fewest: int = setting(1, least=1)

    def identity(self) -> dict:
        """Leave out `fewest` at 1: plans made before it was a setting keep their fingerprints."""
        return {name: value for name, value in super().identity().items() if (name, value) != ("fewest", 1)}

    def shares(self) -> dict[int, float]:
        return {RANDOM: self.random_next}
