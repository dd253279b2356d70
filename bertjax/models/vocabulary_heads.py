"""Further heads that predict tokens: from the boundaries of spans, or from states without a transform."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.config import EncoderConfig
from bertjax.models.heads import vocabulary_logits
from bertjax.models.layers import Dense, activation, layer_norm


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
            hidden = activation(config)(Dense(config, width, config.block.has_biases, name=name)(hidden))
            hidden = layer_norm(config, f"{name}_norm")(hidden)
        return vocabulary_logits(config, hidden, word_VE, word_bias_V)


class VocabularyHead(nn.Module):
    """Multiply with the word embeddings, without a transform (Yang et al., 2019, section 2.3)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, hidden_BKD: jax.Array, word_VE: jax.Array) -> jax.Array:
        """Return float32 logits_BKV over the padded vocabulary; padding gets the lowest float."""
        word_bias_V = self.param("word_bias", nn.initializers.zeros, (self.config.padded_vocab_size,))
        return vocabulary_logits(self.config, hidden_BKD, word_VE, word_bias_V)


class DecoderHead(nn.Module):
    """Multiply with a table of its own instead of the word embeddings, without a transform.

    This is the head of Llama (Touvron et al., 2023, arXiv 2302.13971).

    Attributes:
      has_biases: whether each word has a bias, as in NeoBERT.
    """

    config: EncoderConfig
    has_biases: bool = False

    @nn.compact
    def __call__(self, hidden_BKD: jax.Array, word_VE: jax.Array) -> jax.Array:
        """Return float32 logits_BKV over the padded vocabulary; padding gets the lowest float.

        Args:
          hidden_BKD: states at the predicted positions.
          word_VE: the word embeddings, which other heads read.
        """
        init = nn.initializers.truncated_normal(self.config.init_stddev)
        own_VD = self.param("word", init, (self.config.padded_vocab_size, self.config.width))
        if not self.has_biases:
            return vocabulary_logits(self.config, hidden_BKD, own_VD, jnp.zeros(()))  # a zero for each bias
        word_bias_V = self.param("word_bias", nn.initializers.zeros, (self.config.padded_vocab_size,))
        return vocabulary_logits(self.config, hidden_BKD, own_VD, word_bias_V)


class BiasedDecoderHead(DecoderHead):
    """A decoder with a bias for each word (Le Breton et al., 2025, NeoBERT)."""

    has_biases: bool = True
