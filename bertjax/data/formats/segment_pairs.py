"""BERT's segment pairs: B follows A or is from another document (Devlin et al. 2019, appendix A.2)."""

import dataclasses
from typing import ClassVar

from bertjax.data.formats.pairs import NEXT, RANDOM
from bertjax.data.formats.segments import SegmentFormat, check_share
from bertjax.runtime.errors import UserError


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
    random_next: float = 0.5
    labels: ClassVar[tuple[str, ...]] = ("is_random",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, RANDOM)
    fewest: int = 1

    def __post_init__(self):
        super().__post_init__()
        check_share("random_next", self.random_next)
        if self.fewest < 1:
            raise UserError(f"examples.fewest={self.fewest} must be at least 1 sentence")

    def identity(self) -> dict:
        """Leave out `fewest` at 1: plans made before it was a setting keep their fingerprints."""
        return {name: value for name, value in super().identity().items() if (name, value) != ("fewest", 1)}

    def shares(self) -> dict[int, float]:
        return {RANDOM: self.random_next}
