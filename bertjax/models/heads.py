"""Heads: what turns hidden states into logits."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.config import EncoderConfig
from bertjax.models.layers import Dense, activation, layer_norm


class Heads(nn.Module):
    """Heads by the names of their terms, which their params have, too.

    Attributes:
      kinds: {term: what makes its head}.
    """

    kinds: Mapping[str, Callable[[], nn.Module]]

    def setup(self):
        for term, make in self.kinds.items():
            setattr(self, term, make())

    def __call__(self, term: str, *inputs: jax.Array) -> Any:
        """What the head of a term makes of its inputs."""
        return getattr(self, term)(*inputs)


class MaskedLMHead(nn.Module):
    """Transform to E, then a product with the word embeddings themselves (Devlin et al., 2019, section 3.1, task 1)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, hidden_BKD: jax.Array, word_VE: jax.Array) -> jax.Array:
        """Returns float32 logits_BKV over the padded vocabulary; padded entries are the lowest float."""
        config = self.config
        word_bias_V = self.param("word_bias", nn.initializers.zeros, (config.padded_vocab_size,))
        is_token_V = jnp.arange(config.padded_vocab_size) < config.vocab_size
        bias_V = jnp.where(is_token_V, word_bias_V, jnp.finfo(jnp.float32).min)
        width = config.embedded_width
        transformed_BKE = activation(config)(Dense(config, width, name="transform")(hidden_BKD))
        transformed_BKE = layer_norm(config, "norm")(transformed_BKE)
        rows, word_VE = transformed_BKE.reshape(-1, width), word_VE.astype(transformed_BKE.dtype)
        logits = jnp.einsum("re,ve->rv", rows, word_VE, preferred_element_type=jnp.float32) + bias_V
        return logits.reshape(*hidden_BKD.shape[:-1], -1)


class DetectionHead(nn.Module):
    """Says of each token whether it was replaced (Clark et al., 2020, section 2).

    Its hidden layer is that of the code that the authors published, google-research/electra.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, hidden_BTD: jax.Array) -> jax.Array:
        """Returns float32 logits_BT."""
        transformed_BTD = activation(self.config)(Dense(self.config, self.config.width, name="transform")(hidden_BTD))
        return Dense(self.config, 1, name="classifier")(transformed_BTD)[..., 0].astype(jnp.float32)


class PairHead(nn.Module):
    """Classifies the relation of two segments from the pooled [CLS] (Devlin et al., 2019, section 3.1, task 2)."""

    config: EncoderConfig
    classes: int = 2

    @nn.compact
    def __call__(self, pooled_BND: jax.Array) -> jax.Array:
        """Returns float32 logits, [B, N, classes]."""
        return Dense(self.config, self.classes, name="classifier")(pooled_BND).astype(jnp.float32)
