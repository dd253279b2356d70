"""Building blocks for encoder and heads: dense layers and embeddings.

A parameter whose name starts with `word` has the padded vocabulary as its first axis. `vocabulary.py` relies on that
name to remove the padding before it becomes visible.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.config import EncoderConfig
from bertjax.models.dropout import dropout
from bertjax.models.norms import normalization
from bertjax.models.precision import precision_of
from bertjax.models.remat import kept
from bertjax.models.rounding import rounded
from bertjax.models.trigrams import trigrams


class Dense(nn.Module):
    """`x @ kernel + bias` over the last axis, with BERT's initialization: truncated normal kernel, zero bias.

    Leading axes are merged before the product, so the gradient contracts one axis. XLA's CPU backend then reads the
    activations in place instead of first writing a transposed copy.

    With `activation_bits`, each row of x (one token) is rounded within its own range, so tokens do not affect each
    other and no state is kept. Q8BERT (Zafrir et al., 2019, arXiv 1910.06188, section 3) uses a moving average instead.

    Attributes:
      dtype: compute dtype; empty for the encoder's.
    """

    config: EncoderConfig
    features: int
    use_bias: bool = True
    dtype: str = ""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [..., in] to [..., features]."""
        dtype = jnp.dtype(self.dtype or self.config.execution.dtype)
        init = nn.initializers.truncated_normal(self.config.init_stddev)
        kernel = self.param("kernel", init, (x.shape[-1], self.features))
        rows = x.reshape(-1, x.shape[-1])
        if self.config.activation_bits:
            rows = rounded(rows, self.config.activation_bits)
        rows = jnp.matmul(rows.astype(dtype), kernel.astype(dtype), precision=precision_of(dtype))
        if self.use_bias:
            rows += self.param("bias", nn.initializers.zeros, (self.features,)).astype(dtype)
        return kept(rows.reshape(*x.shape[:-1], self.features))


class Embeddings(nn.Module):
    """Normalized sum of word, position and segment embeddings (Devlin et al., 2019, figure 2), all of width E.

    With trigrams, words are mapped to D, and the sum is D wide. Rotary positions need no table here. With relative
    positions, segments are relative too: words are embedded without a norm, and `query` embeds an unseen token (Yang et
    al., 2019, section 2.3).
    """

    config: EncoderConfig

    def setup(self):
        config, width = self.config, self.config.embedded_width
        init = nn.initializers.truncated_normal(config.init_stddev)
        self.word = self.param("word", init, (config.padded_vocab_size, width))
        if config.words == "trigrams":
            width = config.width
            self.projection = Dense(config, width, config.has_biases)
        if config.has_position_table:
            self.position = self.param("position", init, (config.max_positions + config.position_offset, width))
        if config.positions == "relative":
            self.query = self.param("query", init, (width,))
            return
        if config.segments:
            self.segment = self.param("segment", init, (config.segments, width))
        if config.task_types:
            self.task = self.param("task", init, (config.task_types, width))
        self.norm = normalization(config)

    def __call__(
        self,
        tokens_BT: jax.Array,
        positions_BT: jax.Array,
        segments_BT: jax.Array,
        key: jax.Array | None,
        examples_BT: jax.Array | None = None,
    ) -> jax.Array:
        """Return [B, T, E], or [B, T, D] with trigrams, which need `examples_BT`; `key` None disables dropout."""

        def rows(table_NE: jax.Array, indices_BT: jax.Array) -> jax.Array:
            # In float32, gradients of a frequent token sum up unrounded. jnp.asarray: NumPy cannot take traced indices.
            return jnp.asarray(table_NE, jnp.float32)[indices_BT]

        summed_BTE = rows(self.word, tokens_BT)
        if self.config.positions == "relative":
            return dropout(summed_BTE.astype(self.config.execution.dtype), self.config.dropout, key)
        if self.config.words == "trigrams":
            summed_BTE = self.projection(trigrams(summed_BTE, examples_BT)).astype(jnp.float32)
        if self.config.has_position_table:
            summed_BTE += rows(self.position, positions_BT + self.config.position_offset)
        if self.config.segments:
            summed_BTE += rows(self.segment, segments_BT)
        if self.config.task_types:
            summed_BTE += self.task[self.config.execution.task_type]
        return dropout(self.norm(summed_BTE), self.config.dropout, key)
