"""ALBERT's pretraining: masked language modeling and sentence-order prediction (Lan et al. 2020, arXiv 1909.11942)."""

import dataclasses
from typing import ClassVar

from bertjax.objectives.pretraining.pairs import MaskedPairs


@dataclasses.dataclass(frozen=True)
class SentenceOrderPrediction(MaskedPairs):
    """Masked tokens, and which of two adjoining segments comes first (3.1). Terms: `mlm`, `sop` (label 1: swapped)."""

    labels: ClassVar[tuple[str, ...]] = ("is_swapped",)
    term: ClassVar[str] = "sop"
    classes: ClassVar[int] = 2
