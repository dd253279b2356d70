"""Masked language modeling together with a question about every token that is answered by yes or no."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.data.batch import PlacedExamples
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.heads import DetectionHead, Heads, MaskedLMHead
from bertjax.objectives.base import Arrays, encode
from bertjax.objectives.losses import binary_term
from bertjax.objectives.pretraining.mlm import MaskedLM


class TokenFactModule(nn.Module):
    """Encoder with a masked-LM head and a head on every token that is named after its term."""

    config: EncoderConfig
    term: str

    def setup(self):
        self.encoder = Encoder(self.config)
        kinds = {"mlm": functools.partial(MaskedLMHead, self.config)}
        self.heads = Heads(kinds | {self.term: functools.partial(DetectionHead, self.config)})

    def __call__(self, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        """Returns {`mlm`: logits_BKV at the predicted positions, `<term>`: logits_BT, above 0 for yes}."""
        hidden_BTD = encode(self.encoder, batch, key).hidden
        masked_BKD = jnp.take_along_axis(hidden_BTD, batch["mlm_positions_BK"][..., None], axis=1)
        return {
            "mlm": self.heads("mlm", masked_BKD, self.encoder.embeddings.word),
            self.term: self.heads(self.term, hidden_BTD),
        }


@dataclasses.dataclass(frozen=True)
class TokenFacts(MaskedLM):
    """Predicts masked tokens and a fact of every token, masked or not. Terms: `mlm` and the subclass's own.

    Attributes:
      term: its name.
    """

    term: ClassVar[str]

    def facts(self, examples: PlacedExamples) -> np.ndarray:
        """Host: 1 for yes, 0 for no, -1 for tokens that are not asked; int [n]."""
        raise TypeError(f"{type(self).__name__} has no facts()")

    def module(self, encoder: EncoderConfig) -> nn.Module:
        return TokenFactModule(encoder, self.term)

    def features_of(self, examples, draw, masked):
        facts_BT = examples.tokens_to_rows(self.facts(examples), fill=-1)
        return super().features_of(examples, draw, masked) | {f"{self.term}_labels_BT": facts_BT.astype(np.int32)}

    def weights(self, batch):
        asked = jnp.sum(batch[f"{self.term}_labels_BT"] >= 0).astype(jnp.float32)
        return super().weights(batch) | {self.term: asked}

    def terms_of(self, logits, batch):
        sums, metrics = super().terms_of(logits, batch)
        labels_BT = batch[f"{self.term}_labels_BT"]
        loss, fact_metrics = binary_term(self.term, logits[self.term], labels_BT == 1, labels_BT >= 0)
        return sums | {self.term: loss}, metrics | fact_metrics

    def baselines(self, batch, token_counts):
        """Besides those of masked tokens, `<term>_majority`: always giving the answer that is right more often."""
        labels = batch[f"{self.term}_labels_BT"][batch[f"{self.term}_labels_BT"] >= 0]
        right = np.bincount(labels, minlength=2)
        return super().baselines(batch, token_counts) | {f"{self.term}_majority": (right, len(labels))}
