"""Heads that predict tokens without a transform: with the word embeddings, or with a table of their own."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.config import EncoderConfig
from bertjax.models.heads import vocabulary_logits


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
