"""Masked language modeling together with a classification of how segment B relates to segment A."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.heads import Heads, MaskedLMHead, PairHead
from bertjax.objectives.base import Arrays, encode
from bertjax.objectives.losses import classification_term
from bertjax.objectives.pretraining.mlm import MaskedLM


class MaskedPairModule(nn.Module):
    """Encoder with a masked-LM head and a pair head that is named after its term."""

    config: EncoderConfig
    term: str
    classes: int

    def setup(self):
        self.encoder = Encoder(self.config)
        kinds = {"mlm": functools.partial(MaskedLMHead, self.config)}
        self.heads = Heads(kinds | {self.term: functools.partial(PairHead, self.config, self.classes)})

    def __call__(self, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        """Returns {`mlm`: logits_BKV at the predicted positions, `<term>`: logits, [B, N, classes]}."""
        encoded = encode(self.encoder, batch, key, batch["mlm_positions_BK"])
        return {
            "mlm": self.heads("mlm", encoded.hidden, self.encoder.embeddings.word),
            self.term: self.heads(self.term, encoded.pooled_BND),
        }


@dataclasses.dataclass(frozen=True)
class MaskedPairs(MaskedLM):
    """Predicts masked tokens and one label of each example. Terms: `mlm` and the subclass's own.

    Attributes:
      term: its name.
      classes: how many values the label takes.
    """

    term: ClassVar[str]
    classes: ClassVar[int]

    def module(self, encoder: EncoderConfig) -> nn.Module:
        return MaskedPairModule(encoder, self.term, self.classes)

    def features(self, examples, draw):
        (label,) = self.labels
        return super().features(examples, draw) | {
            f"{self.term}_labels_BN": examples.examples_to_rows(examples.ragged.labels[label]),
            f"{self.term}_weights_BN": (examples.examples_to_rows(examples.ragged.ids, fill=-1) >= 0).astype("float32"),
        }

    def weights(self, batch):
        return super().weights(batch) | {self.term: jnp.sum(batch[f"{self.term}_weights_BN"])}

    def terms_of(self, logits, batch):
        sums, metrics = super().terms_of(logits, batch)
        weights_BN = batch[f"{self.term}_weights_BN"]
        loss, right = classification_term(logits[self.term], batch[f"{self.term}_labels_BN"], weights_BN)
        return sums | {self.term: loss}, metrics | {f"{self.term}_accuracy": (right, jnp.sum(weights_BN))}

    def baselines(self, batch, token_counts):
        """Besides those of masked tokens, `<term>_majority`: always giving the label that is right most often."""
        labels = batch[f"{self.term}_labels_BN"][batch[f"{self.term}_weights_BN"] > 0]
        right = np.bincount(labels, minlength=self.classes)
        return super().baselines(batch, token_counts) | {f"{self.term}_majority": (right, len(labels))}
