"""BERT's pretraining: masked language modeling and next-sentence prediction together (Devlin et al., 2019, 3.1)."""

import dataclasses
from typing import ClassVar

from bertjax.objectives.pretraining.pairs import MaskedPairs


@dataclasses.dataclass(frozen=True)
class BERT(MaskedPairs):
    """Masked tokens, and whether segment B follows segment A. Terms: `mlm`, `nsp` (label 1: B is random)."""

    labels: ClassVar[tuple[str, ...]] = ("is_random",)
    term: ClassVar[str] = "nsp"
    classes: ClassVar[int] = 2
