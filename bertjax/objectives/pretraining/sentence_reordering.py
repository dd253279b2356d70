"""ERNIE 2.0's sentence reordering beside masked language modeling (Sun et al. 2020, arXiv 1907.12412)."""

import dataclasses
from typing import ClassVar

from bertjax.data.formats.sentence_reordering import ORDERS
from bertjax.objectives.pretraining.pairs import MaskedPairs


@dataclasses.dataclass(frozen=True)
class SentenceReorderingPrediction(MaskedPairs):
    """Masked tokens, and in which order the segments of a paragraph stand. Terms: `mlm`, `reordering`.

    The classes are all orders of one, two and three segments ("Structure-aware Pre-training Tasks": the sum of n! over
    n from 1 to the most segments).
    """

    labels: ClassVar[tuple[str, ...]] = ("permutation",)
    term: ClassVar[str] = "reordering"
    classes: ClassVar[int] = len(ORDERS)
