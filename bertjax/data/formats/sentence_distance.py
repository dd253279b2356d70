"""Sentence distance: B adjoins A, or is elsewhere in its document, or in another one.

(Sun et al. 2020, ERNIE 2.0, arXiv 1907.12412, "Structure-aware Pre-training Tasks".)
"""

import dataclasses
from typing import ClassVar

from bertjax.data.formats.pairs import DISTANT, NEXT, RANDOM
from bertjax.data.formats.segments import SegmentFormat


@dataclasses.dataclass(frozen=True)
class SentenceDistance(SegmentFormat):
    """Two segments that fill a row together. Label `distance`, a third each: 0 B follows A, 1 it is from the same
    document with a sentence or more between them, 2 it is from another document.

    Where a document has nothing that far away, B follows A; a sentence that is left alone at the end of its document
    takes a B from another one, whatever was drawn. So the shares are a third each in long documents alone
    (`PairExamples.label_counts` has the numbers).
    """

    kind: str = dataclasses.field(init=False, default="sentence_distance")
    labels: ClassVar[tuple[str, ...]] = ("distance",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, DISTANT, RANDOM)

    def shares(self) -> dict[int, float]:
        return {RANDOM: 1 / 3, DISTANT: 1 / 3}
