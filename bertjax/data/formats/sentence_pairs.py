"""Pairs of single sentences, and pairs of segments by their order, structure or distance."""

import dataclasses
from typing import ClassVar

import numpy as np

from bertjax.data.formats.pairs import DISTANT, NEXT, PREVIOUS, RANDOM, PairFormat
from bertjax.data.formats.partners import Chunks, Share
from bertjax.data.formats.segments import OrderFormat, SegmentFormat
from bertjax.runtime.setting import setting


@dataclasses.dataclass(frozen=True)
class SentencePairs(PairFormat):
    """A is one sentence; B is the next one, or one from another document. Label `is_random`: 1 for another document.

    (Liu et al. 2019, RoBERTa, arXiv 1907.11692, section 4.2, SENTENCE-PAIR+NSP.)

    Attributes:
      random_next: share of pairs with a B from another document. In addition, a document's last sentence gets a random
        B if it starts a pair.
    """

    kind: str = dataclasses.field(init=False, default="sentence_pairs")
    random_next: float = setting(0.5, least=0, most=1)
    labels: ClassVar[tuple[str, ...]] = ("is_random",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, RANDOM)

    def shares(self) -> dict[int, float]:
        return {RANDOM: self.random_next}

    def chunks(self, bounds: np.ndarray, first: np.ndarray, ends: np.ndarray, room: int, share: Share) -> Chunks:
        # Asking for one token makes a partner from elsewhere exactly one sentence.
        return Chunks(first, first + 1, np.minimum(first + 2, ends), partner_tokens=np.ones_like(first))


@dataclasses.dataclass(frozen=True)
class SentenceOrder(OrderFormat):
    """Two adjacent segments that fill a row together. Label `is_swapped`: 1 if B precedes A, in half the pairs.

    (Lan et al. 2020, ALBERT, arXiv 1909.11942, section 3.1.)

    A single sentence left at a document's end has no partner: it is lost, and counted.
    """

    kind: str = dataclasses.field(init=False, default="sentence_order")
    labels: ClassVar[tuple[str, ...]] = ("is_swapped",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, PREVIOUS)

    def shares(self) -> dict[int, float]:
        return {PREVIOUS: 0.5}


@dataclasses.dataclass(frozen=True)
class SentenceStructure(OrderFormat):
    """Two segments that fill a row together. Label `order`, a third each: 0 B follows A, 1 B precedes A, 2 random B.

    (Wang et al. 2020, StructBERT, arXiv 1908.04577, section 2.3.2.)

    A single sentence left at a document's end has no partner there. It gets a random B, so label 2 has more than a
    third; `PairExamples.label_counts` returns the actual counts.
    """

    kind: str = dataclasses.field(init=False, default="sentence_structure")
    labels: ClassVar[tuple[str, ...]] = ("order",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, PREVIOUS, RANDOM)

    def shares(self) -> dict[int, float]:
        return {RANDOM: 1 / 3, PREVIOUS: 1 / 3}


@dataclasses.dataclass(frozen=True)
class SentenceDistance(SegmentFormat):
    """Two segments that fill a row together. Label `distance`, a third each: 0 if B follows A, 1 if it is in the same
    document with one sentence or more between them, 2 if it is in another document.

    (Sun et al. 2020, ERNIE 2.0, arXiv 1907.12412, "Structure-aware Pre-training Tasks".)

    If a document has no such distant sentence, B follows A. A single sentence left at a document's end always gets a B
    from another document. So the labels are balanced only in long documents; `PairExamples.label_counts` returns the
    actual counts.
    """

    kind: str = dataclasses.field(init=False, default="sentence_distance")
    labels: ClassVar[tuple[str, ...]] = ("distance",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, DISTANT, RANDOM)

    def shares(self) -> dict[int, float]:
        return {RANDOM: 1 / 3, DISTANT: 1 / 3}
