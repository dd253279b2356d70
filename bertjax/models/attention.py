"""Self-attention: which tokens see which, and the plain path that every backend can run."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.config import EncoderConfig
from bertjax.models.layers import Dense, dropout


class Visibility(NamedTuple):
    """Which tokens of a row a token may attend to; it never looks out of its example.

    Attributes:
      examples_BT: int, which example of the row a token belongs to (0 = padding, which sees padding only).
      window: at most this far to either side; None for everything.
      rank_BT: int, only tokens of a lower or equal rank (XLNet's order of prediction); None for every order.
    """

    examples_BT: jax.Array
    window: int | None = None
    rank_BT: jax.Array | None = None

    def mask_BQT(self, read_BQ: jax.Array | None = None) -> jax.Array:
        """Boolean mask, True where query q may attend to token t; queries are the tokens `read_BQ`, or all."""

        def of_queries(values_BT):
            return values_BT if read_BQ is None else jnp.take_along_axis(values_BT, read_BQ, axis=1)

        mask_BQT = of_queries(self.examples_BT)[:, :, None] == self.examples_BT[:, None, :]
        columns_BT = jnp.broadcast_to(jnp.arange(self.examples_BT.shape[1]), self.examples_BT.shape)
        if self.window is not None:
            mask_BQT &= jnp.abs(of_queries(columns_BT)[:, :, None] - columns_BT[:, None, :]) <= self.window
        if self.rank_BT is not None:
            mask_BQT &= of_queries(self.rank_BT)[:, :, None] >= self.rank_BT[:, None, :]
        return mask_BQT


def attend(
    query_BQHD: jax.Array,
    key_BTHD: jax.Array,
    value_BTHD: jax.Array,
    mask_BQT: jax.Array,
    dropout_rate: float,
    dropout_key: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Scaled dot-product attention (Vaswani et al., 2017, section 3.2.1), softmax in float32.

    Returns:
      The attended values, [B, Q, H, D / H], and the probabilities before dropout, [B, H, Q, T].
    """
    scale = query_BQHD.shape[-1] ** -0.5
    logits_BHQT = jnp.einsum("bqhd,bthd->bhqt", query_BQHD * scale, key_BTHD).astype(jnp.float32)
    logits_BHQT = jnp.where(mask_BQT[:, None], logits_BHQT, jnp.finfo(jnp.float32).min)
    probabilities_BHQT = jax.nn.softmax(logits_BHQT).astype(value_BTHD.dtype)
    kept_BHQT = dropout(probabilities_BHQT, dropout_rate, dropout_key)
    return jnp.einsum("bhqt,bthd->bqhd", kept_BHQT, value_BTHD), probabilities_BHQT


class SelfAttention(nn.Module):
    """Multi-head self-attention with its output projection (Vaswani et al., 2017, section 3.2.2)."""

    config: EncoderConfig

    @nn.compact
    def __call__(
        self,
        queries_BQD: jax.Array,
        hidden_BTD: jax.Array,
        mask_BQT: jax.Array,
        head_mask_H: jax.Array | None,
        key: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the projected values [B, Q, D] and the attention probabilities [B, H, Q, T]."""
        config = self.config

        def heads(name, x):
            return Dense(config, config.width, name=name)(x).reshape(*x.shape[:-1], config.heads, -1)

        values_BQHD, probabilities_BHQT = attend(
            heads("query", queries_BQD),
            heads("key", hidden_BTD),
            heads("value", hidden_BTD),
            mask_BQT,
            config.attention_dropout,
            key,
        )
        if head_mask_H is not None:
            values_BQHD = values_BQHD * head_mask_H[:, None].astype(values_BQHD.dtype)
        return Dense(config, config.width, name="output")(values_BQHD.reshape(queries_BQD.shape)), probabilities_BHQT
