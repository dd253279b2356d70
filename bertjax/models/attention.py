"""Self-attention, with the plain implementation that every backend can run first; the others are in `kernels`."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models import kernels, taps
from bertjax.models.config import EncoderConfig
from bertjax.models.dropout import attention_dropout, drops
from bertjax.models.fixed import with_fixed_heads
from bertjax.models.kernels import PLAIN, AttentionInputs, attend_by_kernel, implementation_at
from bertjax.models.layers import Dense
from bertjax.models.precision import precision_of
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
    scale, options = query_BQHD.shape[-1] ** -0.5, {"precision": precision_of(key_BTHD.dtype)}
    logits_BHQT = jnp.einsum("bqhd,bthd->bhqt", query_BQHD * scale, key_BTHD, **options).astype(jnp.float32)
    if bias_BHQT is not None:
        logits_BHQT += bias_BHQT * scale
    logits_BHQT = jnp.where(mask_BQT[:, None], logits_BHQT, jnp.finfo(jnp.float32).min)
    probabilities_BHQT = jax.nn.softmax(logits_BHQT).astype(value_BTHD.dtype)
    kept_BHQT = attention_dropout(probabilities_BHQT, dropout_rate, dropout_key, columns_BQ)
    return jnp.einsum("bhqt,bthd->bqhd", kept_BHQT, value_BTHD, **options), probabilities_BHQT


def attend_plainly(inputs: AttentionInputs) -> tuple[jax.Array, jax.Array]:
    """Return context [B, Q, H, D / H] and probabilities before dropout, those of fixed heads first."""
    mask_BQT = inputs.visibility.mask_BQT(inputs.columns_BQ, inputs.rank_BQ)
    # Queries with ranks are those of two streams, whose decisions differ in a column that both have.
    drawn_BQ = inputs.columns_BQ if inputs.rank_BQ is None else None
    apply = with_fixed_heads(attend, inputs.fixed_heads, inputs.visibility, inputs.columns_BQ)
    return apply(*inputs[:3], mask_BQT, inputs.rate, inputs.key, inputs.bias_BHQT, drawn_BQ)


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
          CannotCompute: the implementation does not take an input that is passed, see `AttentionInputs`.
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
        rate = 0.0 if key is None or not drops(config.attention_dropout) else config.attention_dropout
        # All that changes attention is a field of the inputs, so that a kernel cannot drop it.
        states = query_BQHD, key_BTHD, value_BTHD, visibility
        inputs = AttentionInputs(*states, rate, key, bias_BHQT, config.fixed_heads, columns_BQ, rank_BQ)
        context_BQHD = taps.scale_heads(self, self.attend(inputs), visibility.examples_BT, columns_BQ)
        taps.capture(self, "context", context_BQHD)
        output = Dense(config, config.layer_width, config.has_attention_biases, name="output")
        return output(context_BQHD.reshape(*queries_BQD.shape[:-1], config.context_width))

    def attend(self, inputs: AttentionInputs) -> jax.Array:
        """Return the context of the queries, [B, Q, H, D / H], by the implementation for rows of this length."""
        tokens = inputs.key_BTHD.shape[1]
        implementation = implementation_at(self.config.execution, tokens)
        if implementation != PLAIN and (inputs.columns_BQ is None or tokens > kernels.LONGEST_WITH_PLAIN_QUERIES):
            return attend_by_kernel(implementation, inputs)
        context_BQHD, probabilities_BHQT = attend_plainly(inputs)
        taps.capture(self, "attention", probabilities_BHQT)
        return context_BQHD
