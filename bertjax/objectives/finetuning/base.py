"""What fine-tuning objectives on whole examples share: a linear layer on the pooled [CLS] (Devlin et al., 2019)."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.labeled.base import WHERE, Record
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.heads import Heads
from bertjax.models.layers import Dense, dropout
from bertjax.models.random import split
from bertjax.objectives.base import Arrays, Objective, encode


class PooledModule(nn.Module):
    """Encoder, and a linear head on each example's pooled [CLS], with dropout before it."""

    config: EncoderConfig
    term: str
    width: int

    def setup(self):
        self.encoder = Encoder(self.config)
        self.heads = Heads({self.term: functools.partial(Dense, self.config, self.width)})

    def __call__(self, batch: Arrays, key: jax.Array | None = None) -> jax.Array:
        """Returns float32 [B, N, width]."""
        encoder_key, head_key = (None, None) if key is None else split(key, 2)
        nothing_more_BK = jnp.zeros((len(batch["tokens_BT"]), 0), jnp.int32)
        pooled_BND = encode(self.encoder, batch, encoder_key, nothing_more_BK).pooled_BND
        pooled_BND = dropout(pooled_BND, self.config.dropout, head_key)
        return self.heads(self.term, pooled_BND).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class ExampleObjective(Objective):
    """Predicts the label of each example. A subclass says how wide its head is, and what its terms are."""

    labels: ClassVar[tuple[str, ...]] = ("label",)
    term: ClassVar[str]

    def features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        (name,) = self.labels
        labels = examples.ragged.labels[name]
        return {
            "labels_BN": examples.examples_to_rows(labels),
            "weights_BN": examples.examples_to_rows(np.ones(len(labels), np.float32)),
        }

    def weights(self, batch: Arrays) -> Arrays:
        return {self.term: jnp.sum(batch["weights_BN"])}


def correlations(numbers: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Pearson's and Spearman's correlation; 0 where all of either are the same."""
    from scipy import stats

    if numbers.min() == numbers.max() or labels.min() == labels.max():
        return {"pearson": 0.0, "spearman": 0.0}
    found = {"pearson": stats.pearsonr(numbers, labels), "spearman": stats.spearmanr(numbers, labels)}
    return {name: float(result.statistic) for name, result in found.items()}


def majority_accuracy(labels: np.ndarray, counts: np.ndarray) -> dict[str, tuple[float, float]]:
    """A baseline: always guessing the most frequent class, `counts` being those of the training file."""
    return {"majority_accuracy": (float(np.sum(labels == np.argmax(counts))), len(labels))}


def told_probabilities(classes: tuple[str, ...], probabilities_C: np.ndarray) -> Record:
    """`prediction`, the most probable class, and `probabilities`, {class: probability}."""
    return {
        "prediction": classes[int(np.argmax(probabilities_C))],
        "probabilities": {name: round(float(probability), 6) for name, probability in zip(classes, probabilities_C)},
    }


def shown(record: Record) -> Record:
    """A record without the place where it stood."""
    return {key: value for key, value in record.items() if key != WHERE}
