"""StructBERT's sentence structural objective beside masked language modeling (Wang et al. 2020, arXiv 1908.04577)."""

import dataclasses
from typing import ClassVar

from bertjax.objectives.pretraining.pairs import MaskedPairs


@dataclasses.dataclass(frozen=True)
class SentenceStructurePrediction(MaskedPairs):
    """Masked tokens, and how segment B relates to segment A (section 2.2). Terms: `mlm`, `structure`.

    The labels: 0 B follows A, 1 B precedes A, 2 B is random. The word structural objective is in `structbert`.
    """

    labels: ClassVar[tuple[str, ...]] = ("order",)
    term: ClassVar[str] = "structure"
    classes: ClassVar[int] = 3
