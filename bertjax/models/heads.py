"""Heads: from hidden states to logits."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.config import EncoderConfig
from bertjax.models.layers import Dense, activation, layer_norm, precision_of


class Heads(nn.Module):
    """Heads by name; parameters are stored under the same names.

    Attributes:
      kinds: {name: head constructor}.
    """

    kinds: Mapping[str, Callable[[], nn.Module]]

    def setup(self):
        for name, make in self.kinds.items():
            setattr(self, name, make())

    def __call__(self, head: str, *inputs: jax.Array) -> Any:
        """Apply the head named `head`."""
        return getattr(self, head)(*inputs)


class MaskedLMHead(nn.Module):
    """Transform to E, then multiply with the word embeddings (Devlin et al., 2019, section 3.1, task 1).

    With trigrams: to D, and `word_rest` holds the channels that word embeddings lack (google-research/mobilebert).
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, hidden_BKD: jax.Array, word_VE: jax.Array) -> jax.Array:
        """Return float32 logits_BKV over the padded vocabulary; padding gets the lowest float."""
        config = self.config
        # Input embeddings double as output weights (weight tying), so only the bias is a parameter of its own.
        word_bias_V = self.param("word_bias", nn.initializers.zeros, (config.padded_vocab_size,))
        transformed_BKE = transformed(config, config.embeddings.output_width(config), hidden_BKD)
        if missing := config.embeddings.output_width(config) - config.embedded_width:
            init = nn.initializers.truncated_normal(config.init_stddev)
            rest = self.param("word_rest", init, (config.padded_vocab_size, missing))
            word_VE = jnp.concatenate([word_VE, rest], axis=1)
        return vocabulary_logits(config, transformed_BKE, word_VE, word_bias_V)


def masked_lm_head(config: EncoderConfig) -> type[nn.Module]:
    """Return the class of the head that predicts tokens, by default BERT's."""
    return config.block.masked_lm_head or MaskedLMHead


def vocabulary_logits(
    config: EncoderConfig, transformed_BKE: jax.Array, word_VE: jax.Array, word_bias_V: jax.Array
) -> jax.Array:
    """Multiply with the word embeddings: float32 logits_BKV; padding gets the lowest float."""
    is_token_V = jnp.arange(config.padded_vocab_size) < config.vocab_size
    # Vocabulary padding must not reach the softmax.
    bias_V = jnp.where(is_token_V, word_bias_V, jnp.finfo(jnp.float32).min)
    rows = transformed_BKE.reshape(-1, transformed_BKE.shape[-1])
    # Accumulate in float32, also for bfloat16 inputs: the softmax runs over tens of thousands of logits.
    options = {"precision": precision_of(rows.dtype), "preferred_element_type": jnp.float32}
    logits = jnp.einsum("re,ve->rv", rows, word_VE.astype(rows.dtype), **options) + bias_V
    return logits.reshape(*transformed_BKE.shape[:-1], -1)


def transformed(config: EncoderConfig, width: int, states: jax.Array) -> jax.Array:
    """Apply the first layer of a head, whose parameters `transform` and `norm` are the calling module's own."""
    stddev = config.block.output_stddev(config)
    transform = Dense(config, width, config.block.has_biases, stddev=stddev, name="transform")
    return layer_norm(config, "norm")(activation(config)(transform(states)))


class PairHead(nn.Module):
    """Classify how two segments are related, from the pooled [CLS] (Devlin et al., 2019, section 3.1, task 2)."""

    config: EncoderConfig
    classes: int = 2

    @nn.compact
    def __call__(self, pooled_BND: jax.Array) -> jax.Array:
        """Return float32 logits, [B, N, classes]."""
        return Dense(self.config, self.classes, name="classifier")(pooled_BND).astype(jnp.float32)
