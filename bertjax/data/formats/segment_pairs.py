"""BERT's segment pairs: B follows A or is from another document (Devlin et al. 2019, appendix A.2)."""

import dataclasses
from typing import ClassVar

from bertjax.data.formats.pairs import NEXT, RANDOM
from bertjax.data.formats.segments import SegmentFormat, check_share


@dataclasses.dataclass(frozen=True)
class SegmentPairs(SegmentFormat):
    """Two segments of whole sentences that fill a row together. Label `is_random`: 1 where B is from another document.

    Attributes:
      random_next: share of the pairs whose B is from another document. In addition, a chunk of a single sentence gets
        a random B, as in BERT, so the share of all pairs is higher.
    """

    kind: str = dataclasses.field(init=False, default="segment_pairs")
    random_next: float = 0.5
    labels: ClassVar[tuple[str, ...]] = ("is_random",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, RANDOM)
    fewest: ClassVar[int] = 1

    def __post_init__(self):
        super().__post_init__()
        check_share("random_next", self.random_next)

    def shares(self) -> dict[int, float]:
        return {RANDOM: self.random_next}
