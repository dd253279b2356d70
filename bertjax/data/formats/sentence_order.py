"""Sentence order: two consecutive segments, swapped or not (Lan et al. 2020, ALBERT, arXiv 1909.11942, 3.1)."""

import dataclasses
from typing import ClassVar

from bertjax.data.formats.pairs import NEXT, PREVIOUS
from bertjax.data.formats.segments import OrderFormat


@dataclasses.dataclass(frozen=True)
class SentenceOrder(OrderFormat):
    """Two adjacent segments that fill a row together. Label `is_swapped`: 1 if B precedes A, in half the pairs.

    A single sentence left at a document's end has no partner: it is lost, and counted.
    """

    kind: str = dataclasses.field(init=False, default="sentence_order")
    labels: ClassVar[tuple[str, ...]] = ("is_swapped",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, PREVIOUS)

    def shares(self) -> dict[int, float]:
        return {PREVIOUS: 0.5}
