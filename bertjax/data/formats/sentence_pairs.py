"""Pairs of single sentences (Liu et al. 2019, RoBERTa, arXiv 1907.11692, 4.2, SENTENCE-PAIR+NSP)."""

import dataclasses
from typing import ClassVar

import numpy as np

from bertjax.data.formats.pairs import NEXT, RANDOM, PairFormat
from bertjax.data.formats.partners import Chunks, Share
from bertjax.data.formats.segments import check_share


@dataclasses.dataclass(frozen=True)
class SentencePairs(PairFormat):
    """A is one sentence; B is the next one, or one from another document. Label `is_random`: 1 for another document.

    Attributes:
      random_next: share of pairs with a B from another document. In addition, a document's last sentence gets a random
        B if it starts a pair.
    """

    kind: str = dataclasses.field(init=False, default="sentence_pairs")
    random_next: float = 0.5
    labels: ClassVar[tuple[str, ...]] = ("is_random",)
    relations: ClassVar[tuple[int, ...]] = (NEXT, RANDOM)

    def __post_init__(self):
        super().__post_init__()
        check_share("random_next", self.random_next)

    def shares(self) -> dict[int, float]:
        return {RANDOM: self.random_next}

    def chunks(self, bounds: np.ndarray, first: np.ndarray, ends: np.ndarray, room: int, share: Share) -> Chunks:
        # Asking for one token makes a partner from elsewhere exactly one sentence.
        return Chunks(first, first + 1, np.minimum(first + 2, ends), partner_tokens=np.ones_like(first))
