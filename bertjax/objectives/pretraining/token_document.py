"""ERNIE 2.0's token-document relation beside masked language modeling (Sun et al. 2020, arXiv 1907.12412)."""

import dataclasses
from typing import ClassVar

from bertjax.objectives.pretraining.token_facts import TokenFacts


@dataclasses.dataclass(frozen=True)
class TokenDocumentRelation(TokenFacts):
    """Masked tokens, and which tokens the document has again elsewhere ("Word-aware Pre-training Tasks"): words that
    are common, and those of its topic. Terms: `mlm`, `elsewhere`.
    """

    labels: ClassVar[tuple[str, ...]] = ("elsewhere",)
    term: ClassVar[str] = "elsewhere"

    def facts(self, examples):
        return examples.ragged.token_labels["elsewhere"]
