"""Masked language modeling plus one label per example, usually about how segment B relates to segment A.

BERT, ALBERT, StructBERT and ERNIE 2.0 differ only in the question.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from bertjax.data.formats.runs import ORDERS
from bertjax.models.heads import PairHead
from bertjax.models.model import HeadSpec
from bertjax.objectives.host import Traits
from bertjax.objectives.losses import classification_term
from bertjax.objectives.pretraining.mlm import MaskedLM, majority


@dataclasses.dataclass(frozen=True)
class ExampleLabels:
    """One label per example, predicted from its pooled [CLS].

    Attributes:
      term: name of the term.
      label, num_labels: name of the label in the examples, and number of its values.
    """

    term: str
    label: str
    num_labels: int
    reads_all_tokens: ClassVar[bool] = False

    @property
    def head(self) -> HeadSpec:
        return HeadSpec(PairHead, {"classes": self.num_labels})

    def logits(self, model, encoded):
        """Return float32 [B, N, num_labels]."""
        return model.head(self.term, encoded.pooled_BND)

    def features(self, examples):
        return {
            f"{self.term}_labels_BN": examples.examples_to_rows(examples.ragged.labels[self.label]),
            # Empty slots have no example id and get weight 0.
            f"{self.term}_weights_BN": (examples.examples_to_rows(examples.ragged.ids, fill=-1) >= 0).astype("float32"),
        }

    def weight(self, batch):
        return jnp.sum(batch[f"{self.term}_weights_BN"])

    def terms(self, logits, batch):
        weights_BN = batch[f"{self.term}_weights_BN"]
        loss, correct = classification_term(logits[self.term], batch[f"{self.term}_labels_BN"], weights_BN)
        return {self.term: loss}, {f"{self.term}_accuracy": (correct, jnp.sum(weights_BN))}

    def baselines(self, batch):
        labels = batch[f"{self.term}_labels_BN"][batch[f"{self.term}_weights_BN"] > 0]
        return majority(self.term, labels, self.num_labels)


@dataclasses.dataclass(frozen=True)
class BERT(MaskedLM):
    """Masked tokens, and next sentence prediction: does segment B follow segment A? (Devlin et al., 2019, section 3.1).

    Terms: `mlm`, `nsp` (label 1: B is random).
    """

    traits: ClassVar[Traits] = dataclasses.replace(MaskedLM.traits, labels=("is_random",))
    parts = (ExampleLabels("nsp", "is_random", 2),)


@dataclasses.dataclass(frozen=True)
class SentenceOrderPrediction(MaskedLM):
    """ALBERT: masked tokens, and which of two adjacent segments comes first (Lan et al. 2020, 3.1, arXiv 1909.11942).

    Terms: `mlm`, `sop` (label 1: swapped).
    """

    traits: ClassVar[Traits] = dataclasses.replace(MaskedLM.traits, labels=("is_swapped",))
    parts = (ExampleLabels("sop", "is_swapped", 2),)


@dataclasses.dataclass(frozen=True)
class SentenceStructurePrediction(MaskedLM):
    """StructBERT's sentence objective: masked tokens, and how B relates to A (Wang et al., 2020, section 2.3.2).

    Terms: `mlm`, `structure` (0 B follows A, 1 B precedes A, 2 B is random). For the word objective see `structbert`.
    """

    traits: ClassVar[Traits] = dataclasses.replace(MaskedLM.traits, labels=("order",))
    parts = (ExampleLabels("structure", "order", 3),)


@dataclasses.dataclass(frozen=True)
class SentenceDistancePrediction(MaskedLM):
    """ERNIE 2.0: masked tokens, and how far B is from A ("Structure-aware Pre-training Tasks", arXiv 1907.12412).

    Terms: `mlm`, `distance` (0 B is next to A, 1 B is elsewhere in the document, 2 B is from another document).
    """

    traits: ClassVar[Traits] = dataclasses.replace(MaskedLM.traits, labels=("distance",))
    parts = (ExampleLabels("distance", "distance", 3),)


@dataclasses.dataclass(frozen=True)
class SentenceReorderingPrediction(MaskedLM):
    """ERNIE 2.0: masked tokens, and the order of a paragraph's shuffled segments (arXiv 1907.12412).

    Terms: `mlm`, `reordering`. Classes are all orders of one, two and three segments ("Structure-aware Pre-training
    Tasks": n! summed over n from 1 to the largest number of segments).
    """

    traits: ClassVar[Traits] = dataclasses.replace(MaskedLM.traits, labels=("permutation",))
    parts = (ExampleLabels("reordering", "permutation", len(ORDERS)),)
