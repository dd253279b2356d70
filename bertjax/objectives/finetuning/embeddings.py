"""Sentence embeddings: compare texts by their mean hidden states (Reimers & Gurevych, 2019, arXiv 1908.10084).

A pair's two texts are neighboring examples in a row and do not attend to each other; N = 2P.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.models.config import EncoderConfig
from bertjax.models.layers import Dense
from bertjax.models.model import HeadSpec, Model
from bertjax.models.pooling import l2_normalize, mean_of_examples
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.finetuning.answers import (
    class_probabilities,
    correlations,
    majority_accuracy,
    record_scores,
    without_location,
)
from bertjax.objectives.host import Output, Traits
from bertjax.objectives.losses import classification_term, cosine, squared_error
from bertjax.runtime.devices import gather_rows, shard_index
from bertjax.runtime.setting import TRAINING_ONLY, setting


@dataclasses.dataclass(frozen=True)
class EmbeddingObjective(Objective):
    """Base class for losses on embedding pairs; subclasses define the term. Terms: `embedding`.

    Scores: Spearman's and Pearson's correlation between cosine and label, if labels are numbers.
    """

    traits: ClassVar[Traits] = Traits(labels=("side",), group=2)
    term: ClassVar[str] = "embedding"
    best_metric: ClassVar[str] = "embedding_loss"

    def heads(self, config: EncoderConfig) -> dict[str, HeadSpec]:
        return {}

    def logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> tuple[jax.Array, ...]:
        """Return embeddings for all first and all second texts, float32 [B, P, D] each."""
        hidden_BTD = model.encode(batch, key).hidden
        embedding_BND = mean_of_examples(hidden_BTD, batch["examples_BT"], batch["example_ids_BN"].shape[1])
        # The two texts of a pair are neighbors, so first texts have the even slots.
        return embedding_BND[:, 0::2], embedding_BND[:, 1::2]

    def features(self, examples, draw):
        """Return `weights_BP`, and `labels_BP` if pairs have labels."""
        # Both texts of a pair carry its label, so every other slot has all of them.
        values = {"weights_BP": (examples.ragged.labels["side"] == 0).astype(np.float32)}
        if "pair_label" in examples.ragged.labels:
            values["labels_BP"] = examples.ragged.labels["pair_label"]
        return {name: examples.examples_to_rows(array)[:, ::2] for name, array in values.items()}

    def weights(self, batch):
        return {self.term: jnp.sum(batch["weights_BP"])}

    def outputs(self, model, params, batch, taps=None):
        """Return `cosine` for each pair."""
        first_BPD, second_BPD, *_ = self.apply(model, params, batch, taps=taps)
        return {"cosine": Output(cosine(first_BPD, second_BPD), per="pair")}

    def score(self, outputs, examples, records):
        if self.classes or "pair_label" not in examples.labels:
            return {}
        return correlations(outputs["cosine"], examples.labels["pair_label"][::2])

    def predictions(self, outputs, examples, records):
        """Return records with `cosine`."""
        return [
            without_location(record) | {"cosine": round(float(c), 6)}
            for record, c in zip(records[::2], outputs["cosine"], strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class EmbeddingRegression(EmbeddingObjective):
    """Fits the cosine to the label by squared error (section 3, "Regression Objective Function").

    Attributes:
      full_score: label that corresponds to cosine 1; label 0 corresponds to cosine 0.
    """

    full_score: float = setting(1.0, above=0)
    traits: ClassVar[Traits] = Traits(labels=("side", "pair_label"), group=2)
    best_metric: ClassVar[str] = "spearman"

    @property
    def reach(self) -> tuple[float, float]:
        """The lowest and the highest label that a cosine can equal."""
        return -self.full_score, self.full_score

    def terms_of(self, logits, batch):
        cosine_BP = cosine(*logits)
        return {self.term: squared_error(cosine_BP, batch["labels_BP"] / self.full_score, batch["weights_BP"])}, {}


@dataclasses.dataclass(frozen=True)
class EmbeddingClassification(EmbeddingObjective):
    """Softmax classifier on (u, v, |u - v|) (section 3, "Classification Objective Function").

    Attributes:
      classes: class names in order; empty takes them from the training file.
    """

    classes: tuple[str, ...] = ()
    traits: ClassVar[Traits] = Traits(labels=("side", "pair_label"), group=2)
    best_metric: ClassVar[str] = "accuracy"

    def heads(self, config: EncoderConfig) -> dict[str, HeadSpec]:
        return {self.term: HeadSpec(Dense, {"features": len(self.classes), "dtype": "float32"})}

    def logits(self, model: Model, batch: Arrays, key: jax.Array | None = None) -> tuple[jax.Array, ...]:
        """Return both embeddings, float32 [B, P, D], and float32 logits_BPC."""
        first_BPD, second_BPD = super().logits(model, batch, key)
        compared = jnp.concatenate([first_BPD, second_BPD, jnp.abs(first_BPD - second_BPD)], axis=-1)
        return first_BPD, second_BPD, model.head(self.term, compared).astype(jnp.float32)

    def terms_of(self, logits, batch):
        *_, logits_BPC = logits
        weights_BP = batch["weights_BP"]
        loss, correct = classification_term(logits_BPC, batch["labels_BP"], weights_BP)
        return {self.term: loss}, {"accuracy": (correct, weights_BP.sum())}

    def outputs(self, model, params, batch, taps=None):
        """Return `cosine`, and `probabilities` over the classes."""
        first_BPD, second_BPD, logits_BPC = self.apply(model, params, batch, taps=taps)
        return {
            "cosine": Output(cosine(first_BPD, second_BPD), per="pair"),
            "probabilities": Output(jax.nn.softmax(logits_BPC), per="pair"),
        }

    def baselines(self, batch, token_counts):
        """Return the accuracy of always predicting the most frequent training class."""
        return majority_accuracy(batch["labels_BP"][batch["weights_BP"] > 0], token_counts)

    def scores(self, outputs, examples, records):
        is_right = outputs["probabilities"].argmax(axis=-1) == examples.labels["pair_label"][::2]
        return {"accuracy": record_scores(records[::2], is_right)}

    def predictions(self, outputs, examples, records):
        """Return records with `cosine`, `prediction`, a class, and `probabilities`, {class: probability}."""
        predicted = super().predictions(outputs, examples, records)
        return [
            record | class_probabilities(self.classes, probabilities_C)
            for record, probabilities_C in zip(predicted, outputs["probabilities"], strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class EmbeddingContrastive(EmbeddingObjective):
    """Retrieves each first text's partner among all second texts in the batch, by cosine / temperature.

    All other second texts are negatives: Henderson et al. (2017, arXiv 1705.00652, section 4.4) with a temperature, as
    in supervised SimCSE (Gao et al., 2021, arXiv 2104.08821, section 4). Pairs need no label; numeric labels are
    correlated with the cosine. The metric `accuracy` counts how often the partner ranks first. Like the loss, it
    depends on the batch size.

    Attributes:
      temperature: divides the cosine.
    """

    temperature: float = setting(0.05, above=0)
    traits: ClassVar[Traits] = dataclasses.replace(EmbeddingObjective.traits, needs_global_batch=True)

    def terms_of(self, logits, batch):
        """Return the cross-entropy for retrieving each pair's second text from the whole batch, and `accuracy`."""
        width, weights = logits[0].shape[-1], batch["weights_BP"].reshape(-1)
        first, second = (l2_normalize(vectors.reshape(-1, width)) for vectors in logits)
        # Logits reach 1 / 0.05 = 20, where a bfloat16 product would be off by a tenth of a nat.
        cosines = jnp.einsum("pd,qd->pq", first, gather_rows(second), precision=jax.lax.Precision.HIGHEST)
        # Empty slots must not be negatives.
        scores = jnp.where(gather_rows(weights) > 0, cosines / self.temperature, jnp.finfo(jnp.float32).min)
        # Each shard's partners start at its own offset among the gathered texts.
        own = shard_index() * len(weights) + jnp.arange(len(weights))
        loss, correct = classification_term(scores, own, weights)
        return {self.term: loss}, {"accuracy": (correct, weights.sum())}


@dataclasses.dataclass(frozen=True)
class EmbeddingSimCSE(EmbeddingContrastive):
    """Unsupervised SimCSE: retrieves each text's other view in the batch; the two views differ by dropout.

    Gao et al. (2021, arXiv 2104.08821, section 3). Use it with `repeated_text` examples. Evaluation has no dropout, so
    both views would be equal; `accuracy` is therefore measured on the held-out pairs.

    Attributes:
      metric: metric that selects the best checkpoint: `spearman` or `pearson`, the correlation between cosine and
        held-out scores; empty for the loss, if there are no scores.
    """

    metric: str = setting("spearman", choices=("spearman", "pearson", ""), metadata=TRAINING_ONLY)

    @property
    def traits(self) -> Traits:
        labels = ("side", "pair_label") if self.metric else ("side",)
        return Traits(labels, group=2, needs_global_batch=True, needs_dropout=True)

    @property
    def best_metric(self) -> str:
        return self.metric or f"{self.term}_loss"
