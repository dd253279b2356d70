"""Self-attention, with the plain implementation that every backend can run first; the others are in `kernels`."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models import taps
from bertjax.models.config import EncoderConfig
from bertjax.models.dropout import attention_dropout
from bertjax.models.fixed import with_fixed_heads
from bertjax.models.kernels import LONGEST_WITH_PLAIN_QUERIES, PLAIN, attend_by_kernel, implementation_at
from bertjax.models.layers import Dense
from bertjax.models.relative import RelativeBias, RelativePositions
from bertjax.models.rotary import Rotary, apply_rotary
from bertjax.models.visibility import Queries, Visibility


def attend(
    query_BQHD: jax.Array,
    key_BTHD: jax.Array,
    value_BTHD: jax.Array,
    mask_BQT: jax.Array,
    dropout_rate: float,
    dropout_key: jax.Array | None,
    bias_BHQT: jax.Array | None = None,
    columns_BQ: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return context [B, Q, H, D / H] and probabilities before dropout of scaled dot-product attention.

    Vaswani et al. (2017, section 3.2.1), with the softmax in float32. `bias_BHQT` is added to the products of queries
    and keys and scaled with them. `columns_BQ` are those of the queries, as in `attention_dropout`.
    """
    scale = query_BQHD.shape[-1] ** -0.5
    logits_BHQT = jnp.einsum("bqhd,bthd->bhqt", query_BQHD * scale, key_BTHD).astype(jnp.float32)
    if bias_BHQT is not None:
        logits_BHQT += bias_BHQT * scale
    logits_BHQT = jnp.where(mask_BQT[:, None], logits_BHQT, jnp.finfo(jnp.float32).min)
    probabilities_BHQT = jax.nn.softmax(logits_BHQT).astype(value_BTHD.dtype)
    kept_BHQT = attention_dropout(probabilities_BHQT, dropout_rate, dropout_key, columns_BQ)
    return jnp.einsum("bhqt,bthd->bqhd", kept_BHQT, value_BTHD), probabilities_BHQT


class SelfAttention(nn.Module):
    """Multi-head self-attention with its output projection (Vaswani et al., 2017, section 3.2.2)."""

    config: EncoderConfig

    @nn.compact
    def __call__(
        self,
        queries: Queries | None,
        keys_BTD: jax.Array,
        values_BTD: jax.Array,
        visibility: Visibility,
        key: jax.Array | None,
        positions: Rotary | RelativePositions | None = None,
    ) -> jax.Array:
        """Return the projected context of the queries, or of all tokens: [B, Q, D], or as wide as the inner width.

        Args:
          queries: states that attend; None for those of the keys.
          keys_BTD: states that they attend to.
          values_BTD: states of the same tokens that are averaged.
          key: for dropout; None for no dropout.
          positions: rotary or relative positions of all tokens, if `config.positions` is either.

        Raises:
          ValueError: the implementation cannot express the visibility or the positions, or has no dropout.
        """
        config = self.config
        queries_BQD, columns_BQ, rank_BQ, tokens = queries or (keys_BTD, None, None, keys_BTD.shape[1])

        def heads(name, x, count=config.learned_heads):
            projected = Dense(config, count * config.head_channels, config.has_attention_biases, name=name)(x)
            return projected.reshape(*x.shape[:-1], count, -1)

        query_BQHD, key_BTHD = heads("query", queries_BQD), heads("key", keys_BTD)
        value_BTHD, bias_BHQT = heads("value", values_BTD, config.heads), None
        if config.positions == "rotary":
            query_BQHD, key_BTHD = apply_rotary(query_BQHD, positions.at(columns_BQ)), apply_rotary(key_BTHD, positions)
        elif config.positions == "relative":
            query_BQHD, bias_BHQT = RelativeBias(config, name="relative")(query_BQHD, positions, columns_BQ, tokens)
        for name, value in (("queries", query_BQHD), ("keys", key_BTHD), ("values", value_BTHD)):
            taps.capture(self, name, value)
        rate = 0.0 if key is None else config.attention_dropout
        implementation = implementation_at(config.execution, keys_BTD.shape[1])
        if implementation == PLAIN or (queries is not None and keys_BTD.shape[1] <= LONGEST_WITH_PLAIN_QUERIES):
            mask_BQT = visibility.mask_BQT(columns_BQ, rank_BQ)
            # Queries with ranks are those of two streams, whose decisions differ in a column that both have.
            drawn_BQ = columns_BQ if rank_BQ is None else None
            apply = with_fixed_heads(attend, config.fixed_heads, visibility, columns_BQ)
            inputs = query_BQHD, key_BTHD, value_BTHD, mask_BQT, rate, key, bias_BHQT, drawn_BQ
            context_BQHD, probabilities_BHQT = apply(*inputs)
            taps.capture(self, "attention", probabilities_BHQT)
        else:
            inputs = query_BQHD, key_BTHD, value_BTHD, visibility, rate, key, columns_BQ
            context_BQHD = attend_by_kernel(implementation, config, *inputs)
        context_BQHD = taps.scale_heads(self, context_BQHD, visibility.examples_BT, columns_BQ)
        taps.capture(self, "context", context_BQHD)
        output = Dense(config, config.layer_width, config.has_attention_biases, name="output")
        return output(context_BQHD.reshape(*queries_BQD.shape[:-1], config.context_width))
