"""Sentence embeddings: an encoder whose mean hidden states are compared (Reimers & Gurevych, 2019, arXiv 1908.10084).

The two texts of a pair are neighboring examples of a row, N = 2P of them, which do not see each other.
"""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.errors import UserError
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.heads import Heads
from bertjax.models.layers import Dense
from bertjax.models.pooling import mean_of_examples
from bertjax.objectives.base import Arrays, Objective, encode
from bertjax.objectives.finetuning.base import correlations, majority_accuracy, shown, told_probabilities
from bertjax.objectives.losses import classification_term, cosine, squared_error


class EmbeddingModule(nn.Module):
    """Encoder, and the mean of each example's last hidden states."""

    config: EncoderConfig

    def setup(self):
        self.encoder = Encoder(self.config)

    def __call__(self, batch: Arrays, key: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        """Returns the embeddings of the first and of the second texts; float32 [B, P, D] each."""
        return _embed_pairs(self.encoder, batch, key)


def _embed_pairs(encoder: Encoder, batch: Arrays, key: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    hidden_BTD = encode(encoder, batch, key).hidden
    embedding_BND = mean_of_examples(hidden_BTD, batch["examples_BT"], batch["example_ids_BN"].shape[1])
    return embedding_BND[:, 0::2], embedding_BND[:, 1::2]


class ComparedModule(nn.Module):
    """The same, with a linear head on (u, v, |u - v|)."""

    config: EncoderConfig
    width: int

    def setup(self):
        self.encoder = Encoder(self.config)
        self.heads = Heads({"embedding": functools.partial(Dense, self.config, self.width)})

    def __call__(self, batch: Arrays, key: jax.Array | None = None) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns both embeddings, float32 [B, P, D], and float32 logits [B, P, width]."""
        first_BPD, second_BPD = _embed_pairs(self.encoder, batch, key)
        compared = jnp.concatenate([first_BPD, second_BPD, jnp.abs(first_BPD - second_BPD)], axis=-1)
        return first_BPD, second_BPD, self.heads("embedding", compared).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class EmbeddingObjective(Objective):
    """What the losses on pairs of embeddings share. A subclass has the terms. Term: `embedding`.

    Scores: Spearman's and Pearson's correlation of the cosine with the label, where labels are numbers.
    """

    labels: ClassVar[tuple[str, ...]] = ("side",)
    group: ClassVar[int] = 2
    term: ClassVar[str] = "embedding"

    def module(self, encoder: EncoderConfig) -> nn.Module:
        return EmbeddingModule(encoder)

    def features(self, examples, draw):
        """`weights_BP`, and `labels_BP` where pairs have labels."""
        values = {"weights_BP": (examples.ragged.labels["side"] == 0).astype(np.float32)}
        if "pair_label" in examples.ragged.labels:
            values["labels_BP"] = examples.ragged.labels["pair_label"]
        return {name: examples.examples_to_rows(of_examples)[:, ::2] for name, of_examples in values.items()}

    def weights(self, batch):
        return {self.term: jnp.sum(batch["weights_BP"])}

    def outputs(self, module, params, batch):
        """`cosine_BN`, with the other text of the pair."""
        first_BPD, second_BPD, *_ = module.apply({"params": params}, batch)
        return {"cosine_BN": jnp.repeat(cosine(first_BPD, second_BPD), 2, axis=1)}

    def score(self, outputs, examples, records):
        if self.classes or "pair_label" not in examples.labels:
            return {}
        return correlations(outputs["cosine_BN"][::2], examples.labels["pair_label"][::2])

    def predictions(self, outputs, examples, records):
        """Each record with `cosine`."""
        cosines = outputs["cosine_BN"][::2]
        return [shown(record) | {"cosine": round(float(c), 6)} for record, c in zip(records[::2], cosines, strict=True)]


@dataclasses.dataclass(frozen=True)
class EmbeddingRegression(EmbeddingObjective):
    """The cosine shall be the label, by squared error (section 3, "Regression Objective Function").

    Attributes:
      full_score: the label that asks for a cosine of 1; 0 asks for 0.
    """

    full_score: float = 1.0
    labels: ClassVar[tuple[str, ...]] = ("side", "pair_label")
    best_metric: ClassVar[str] = "spearman"

    def __post_init__(self):
        if not self.full_score > 0.0:
            raise UserError(f"objective.full_score={self.full_score} must be above 0; it is the highest label")

    def terms(self, module, params, frozen, batch, key, train):
        cosine_BP = cosine(*module.apply({"params": params}, batch, key if train else None))
        return {self.term: squared_error(cosine_BP, batch["labels_BP"] / self.full_score, batch["weights_BP"])}, {}


@dataclasses.dataclass(frozen=True)
class EmbeddingClassification(EmbeddingObjective):
    """A softmax over the classes from (u, v, |u - v|) (section 3, "Classification Objective Function").

    Attributes:
      classes: see `Objective`.
    """

    classes: tuple[str, ...] = ()
    labels: ClassVar[tuple[str, ...]] = ("side", "pair_label")
    best_metric: ClassVar[str] = "accuracy"

    def module(self, encoder: EncoderConfig) -> nn.Module:
        return ComparedModule(encoder, len(self.classes))

    def terms(self, module, params, frozen, batch, key, train):
        *_, logits_BPC = module.apply({"params": params}, batch, key if train else None)
        weights_BP = batch["weights_BP"]
        loss, right = classification_term(logits_BPC, batch["labels_BP"], weights_BP)
        return {self.term: loss}, {"accuracy": (right, weights_BP.sum())}

    def outputs(self, module, params, batch):
        """`cosine_BN`, and `probabilities_BNC` of the classes, on both texts of a pair."""
        first_BPD, second_BPD, logits_BPC = module.apply({"params": params}, batch)
        of_pairs = {"cosine_BN": cosine(first_BPD, second_BPD), "probabilities_BNC": jax.nn.softmax(logits_BPC)}
        return {name: jnp.repeat(values, 2, axis=1) for name, values in of_pairs.items()}

    def baselines(self, batch, token_counts):
        """Always guessing the most frequent class of the training file."""
        return majority_accuracy(batch["labels_BP"][batch["weights_BP"] > 0], token_counts)

    def predictions(self, outputs, examples, records):
        """Each record with `cosine`, `prediction`, a class, and `probabilities`, {class: probability}."""
        told = super().predictions(outputs, examples, records)
        probabilities_MC = outputs["probabilities_BNC"][::2]
        return [
            record | told_probabilities(self.classes, probabilities_C)
            for record, probabilities_C in zip(told, probabilities_MC, strict=True)
        ]
