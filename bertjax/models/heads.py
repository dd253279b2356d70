"""Heads: from hidden states to logits."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.config import EncoderConfig
from bertjax.models.execution import precision_of
from bertjax.models.layers import Dense, activation, layer_norm


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


class SpanBoundaryHead(nn.Module):
    """Predict each masked token from the two tokens around its span and its place in the span.

    Two layers with GELU and layer norm read the boundary states and the place embedding, followed by a product with the
    word embeddings (Joshi et al., 2020, section 3.2).

    Attributes:
      longest: number of places with an embedding.
      place_width: width of the place embeddings.
    """

    config: EncoderConfig
    longest: int
    place_width: int

    @nn.compact
    def __call__(
        self, left_BKD: jax.Array, right_BKD: jax.Array, places_BK: jax.Array, word_VE: jax.Array
    ) -> jax.Array:
        """Return float32 logits_BKV over the padded vocabulary.

        Args:
          left_BKD, right_BKD: hidden states of the last token before the span and the first token after it.
          places_BK: int, in [0, longest), 0 for the first token in the span.
        """
        config = self.config
        init = nn.initializers.truncated_normal(config.init_stddev)
        place = self.param("place", init, (self.longest, self.place_width))
        word_bias_V = self.param("word_bias", nn.initializers.zeros, (config.padded_vocab_size,))
        hidden = jnp.concatenate([left_BKD, right_BKD, place[places_BK].astype(left_BKD.dtype)], axis=-1)
        for name, width in (("first", config.width), ("second", config.embedded_width)):
            hidden = activation(config)(Dense(config, width, config.has_biases, name=name)(hidden))
            hidden = layer_norm(config, f"{name}_norm")(hidden)
        return vocabulary_logits(config, hidden, word_VE, word_bias_V)


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
    transform = Dense(config, width, config.has_biases, stddev=stddev, name="transform")
    return layer_norm(config, "norm")(activation(config)(transform(states)))


class PairHead(nn.Module):
    """Classify how two segments are related, from the pooled [CLS] (Devlin et al., 2019, section 3.1, task 2)."""

    config: EncoderConfig
    classes: int = 2

    @nn.compact
    def __call__(self, pooled_BND: jax.Array) -> jax.Array:
        """Return float32 logits, [B, N, classes]."""
        return Dense(self.config, self.classes, name="classifier")(pooled_BND).astype(jnp.float32)
