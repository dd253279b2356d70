"""BERT's pretraining: masked language modelling and next-sentence prediction together (Devlin et al., 2019, 3.1)."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.heads import MaskedLMHead, PairHead
from bertjax.objectives.base import Arrays
from bertjax.objectives.mlm import MaskedLM, classification_term, encode


class _Heads(nn.Module):
    config: EncoderConfig

    def setup(self):
        self.mlm = MaskedLMHead(self.config)
        self.nsp = PairHead(self.config)


class BERTModule(nn.Module):
    """Encoder with a masked-LM head and a next-sentence head."""

    config: EncoderConfig

    def setup(self):
        self.encoder = Encoder(self.config)
        self.heads = _Heads(self.config)

    def __call__(self, batch: Arrays, key: jax.Array | None = None) -> Arrays:
        """Returns {`mlm`: logits_BKV at the predicted positions, `nsp`: logits_BN2}."""
        encoded = encode(self.encoder, batch, key)
        return {
            "mlm": self.heads.mlm(encoded.hidden, self.encoder.embeddings.word),
            "nsp": self.heads.nsp(encoded.pooled_BND),
        }


@dataclasses.dataclass(frozen=True)
class BERT(MaskedLM):
    """Masked tokens, and whether segment B follows segment A. Terms: `mlm`, `nsp` (label 1: B is random)."""

    def module(self, encoder: EncoderConfig) -> nn.Module:
        return BERTModule(encoder)

    def features(self, examples, draw):
        return super().features(examples, draw) | {
            "nsp_labels_BN": examples.examples_to_rows(examples.ragged.labels["is_random"]),
            "nsp_weights_BN": (examples.examples_to_rows(examples.ragged.ids, fill=-1) >= 0).astype("float32"),
        }

    def weights(self, batch):
        return super().weights(batch) | {"nsp": jnp.sum(batch["nsp_weights_BN"])}

    def terms_of(self, logits, batch):
        sums, metrics = super().terms_of(logits, batch)
        weights_BN = batch["nsp_weights_BN"]
        loss, right = classification_term(logits["nsp"], batch["nsp_labels_BN"], weights_BN)
        return sums | {"nsp": loss}, metrics | {"nsp_accuracy": (right, jnp.sum(weights_BN))}
