"""ERNIE 2.0's sentence distance beside masked language modeling (Sun et al. 2020, arXiv 1907.12412)."""

import dataclasses
from typing import ClassVar

from bertjax.objectives.pretraining.pairs import MaskedPairs


@dataclasses.dataclass(frozen=True)
class SentenceDistancePrediction(MaskedPairs):
    """Masked tokens, and how far B is from A ("Structure-aware Pre-training Tasks"). Terms: `mlm`, `distance`.

    The labels: 0 B adjoins A, 1 it is elsewhere in the same document, 2 it is of another document.
    """

    labels: ClassVar[tuple[str, ...]] = ("distance",)
    term: ClassVar[str] = "distance"
    classes: ClassVar[int] = 3
