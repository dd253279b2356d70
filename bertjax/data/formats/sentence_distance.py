"""Sentence distance: B follows A, is elsewhere in the same document, or is in another document.

(Sun et al. 2020, ERNIE 2.0, arXiv 1907.12412, "Structure-aware Pre-training Tasks".)
"""

import dataclasses
from typing import ClassVar

from bertjax.data.formats.pairs import DISTANT, NEXT, RANDOM
from bertjax.data.formats.segments import SegmentFormat


@dataclasses.dataclass(frozen=True)
class SentenceDistance(SegmentFormat):
    """Two segments that fill a row together. Label `distance`, a third each: 0 if B follows A, 1 if it is in the same
    document with one sentence or more between them, 2 if it is in another document.

    If a document has no such distant sentence, B follows A. A single sentence left at a document's end always gets a B
    from another document. So the labels are balanced only in long documents; `PairExamples.label_counts` returns the
    actual counts.
    """

    kind: str = dataclasses.field(init=False, default="sentence_distance")
    labels: ClassVar[tuple[str, ...]] = ("distance",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, DISTANT, RANDOM)

    def shares(self) -> dict[int, float]:
        return {RANDOM: 1 / 3, DISTANT: 1 / 3}
