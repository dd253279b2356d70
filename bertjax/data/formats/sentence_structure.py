"""Sentence structure: B follows A, precedes A, or is random (Wang et al. 2020, StructBERT, arXiv 1908.04577, 2.3.2)."""

import dataclasses
from typing import ClassVar

from bertjax.data.formats.pairs import NEXT, PREVIOUS, RANDOM
from bertjax.data.formats.segments import OrderFormat


@dataclasses.dataclass(frozen=True)
class SentenceStructure(OrderFormat):
    """Two segments that fill a row together. Label `order`, a third each: 0 B follows A, 1 B precedes A, 2 random B.

    A single sentence left at a document's end has no partner there. It gets a random B, so label 2 has more than a
    third; `PairExamples.label_counts` returns the actual counts.
    """

    kind: str = dataclasses.field(init=False, default="sentence_structure")
    labels: ClassVar[tuple[str, ...]] = ("order",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, PREVIOUS, RANDOM)

    def shares(self) -> dict[int, float]:
        return {RANDOM: 1 / 3, PREVIOUS: 1 / 3}
