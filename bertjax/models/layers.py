"""The parts that encoder and heads are built of: dense layers, layer norm, dropout, embeddings.

A parameter whose name begins with `word` has the padded vocabulary as its first axis; `vocabulary.py` cuts it by that
name wherever the padding must not show.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.config import EncoderConfig
from bertjax.models.random import bits

# Dropout decides by one byte, so that one 32-bit draw serves four elements.
_BYTE_VALUES = 256


class Dense(nn.Module):
    """`x @ kernel + bias` on the last axis, with BERT's initialization: truncated normal kernel, zero bias.

    The leading axes are merged before the product, not contracted in the gradient: XLA's CPU backend then reads the
    activations as they lie, where it would first write a transposed copy of them.
    """

    config: EncoderConfig
    features: int
    use_bias: bool = True
    dtype: str = ""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return [..., features] of [..., in], computed in `dtype`, by default that of the encoder."""
        dtype = jnp.dtype(self.dtype or self.config.execution.dtype)
        kernel = self.param(
            "kernel", nn.initializers.truncated_normal(self.config.init_stddev), (x.shape[-1], self.features)
        )
        rows = x.reshape(-1, x.shape[-1]).astype(dtype) @ kernel.astype(dtype)
        if self.use_bias:
            rows += self.param("bias", nn.initializers.zeros, (self.features,)).astype(dtype)
        return rows.reshape(*x.shape[:-1], self.features)


def layer_norm(config: EncoderConfig, name: str | None = None) -> nn.LayerNorm:
    """Layer norm over the last axis (Ba et al., 2016), its statistics in float32."""
    return nn.LayerNorm(
        epsilon=config.norm_epsilon,
        dtype=jnp.dtype(config.execution.dtype),
        use_bias=config.has_biases,
        use_fast_variance=False,
        name=name,
    )


def gelu(x: jax.Array) -> jax.Array:
    """The exact, erf form of GELU (Hendrycks & Gimpel, 2016), as published in BERT."""
    return 0.5 * x * (1.0 + jax.lax.erf(x * 2**-0.5))


def gelu_tanh(x: jax.Array) -> jax.Array:
    """The approximation of GELU by tanh (Hendrycks & Gimpel, 2016, section 2)."""
    return 0.5 * x * (1.0 + jnp.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)))


def activation(config: EncoderConfig) -> Callable[[jax.Array], jax.Array]:
    """The function that `config.activation` names, without the gate of `geglu`."""
    return {"gelu": gelu, "gelu_tanh": gelu_tanh, "geglu": gelu}[config.activation]


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zeroes a share of `x` [B, ...] and scales the rest so that its mean stays; without a key, `x` itself.

    The share is `rate` rounded to a multiple of 1/256 and the scale is its exact inverse, since each element is decided
    by one byte of threefry's 32-bit words: a quarter of the hashing of a word per element.
    """
    if key is None or rate == 0.0:
        return x
    threshold = round((1.0 - rate) * _BYTE_VALUES)
    *leading, last = x.shape
    words = bits(key, (*leading, -(-last // 4)))
    decisions = jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(*leading, -1)[..., :last]
    return jnp.where(decisions < threshold, x * (_BYTE_VALUES / threshold), 0.0).astype(x.dtype)


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings, normalized (Devlin et al., 2019, figure 2), all of width E.

    Positions that are rotary have no table here, nor have segments and tasks where there are none. Where positions are
    relative, so are segments, and words are embedded as they are; beside them is `query`, which stands for a token that
    is not seen (Yang et al., 2019, section 2.3).
    """

    config: EncoderConfig

    def setup(self):
        config, width = self.config, self.config.embedded_width
        init = nn.initializers.truncated_normal(config.init_stddev)
        self.word = self.param("word", init, (config.padded_vocab_size, width))
        if config.positions == "learned":
            self.position = self.param("position", init, (config.max_positions + config.position_offset, width))
        if config.positions == "relative":
            self.query = self.param("query", init, (width,))
            return
        if config.segments:
            self.segment = self.param("segment", init, (config.segments, width))
        if config.task_types:
            self.task = self.param("task", init, (config.task_types, width))
        self.norm = layer_norm(config)

    def __call__(
        self, tokens_BT: jax.Array, positions_BT: jax.Array, segments_BT: jax.Array, key: jax.Array | None
    ) -> jax.Array:
        """Returns [B, T, E]; `key` None means no dropout."""

        def rows(table_NE: jax.Array, indices_BT: jax.Array) -> jax.Array:
            # In float32, so that the gradients of a frequent token are not rounded one by one as they add up.
            return table_NE.astype(jnp.float32)[indices_BT]

        summed_BTE = rows(self.word, tokens_BT)
        if self.config.positions == "relative":
            return dropout(summed_BTE.astype(self.config.execution.dtype), self.config.dropout, key)
        if self.config.positions == "learned":
            summed_BTE += rows(self.position, positions_BT + self.config.position_offset)
        if self.config.segments:
            summed_BTE += rows(self.segment, segments_BT)
        if self.config.task_types:
            summed_BTE += self.task[self.config.execution.task_type]
        return dropout(self.norm(summed_BTE), self.config.dropout, key)
