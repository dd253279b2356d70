"""Sentence distance: B follows A, is elsewhere in the same document, or is in another document.

(Sun et al. 2020, ERNIE 2.0, arXiv 1907.12412, "Structure-aware Pre-training Tasks".)
"""

import dataclasses
from typing import ClassVar

from bertjax.data.formats.pairs import DISTANT, NEXT, RANDOM
from bertjax.data.formats.segments import SegmentFormat


@dataclasses.dataclass(frozen=True)
class SentenceDistance(SegmentFormat):
    """Two segments that fill a row together. Label `distance`, a third each: 0 B follows A, 1 it is from the same
    document with one or more sentences between them, 2 it is from another document.

    If a document has no such distant sentence, B follows A. A single sentence at the end of its document always gets a
    B from another document. So the shares are a third each only in long documents (`PairExamples.label_counts` returns
    the numbers).
    """

    kind: str = dataclasses.field(init=False, default="sentence_distance")
    labels: ClassVar[tuple[str, ...]] = ("distance",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, DISTANT, RANDOM)

    def shares(self) -> dict[int, float]:
        return {RANDOM: 1 / 3, DISTANT: 1 / 3}
