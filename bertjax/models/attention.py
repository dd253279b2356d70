"""Self-attention, with a plain implementation that runs on every backend. Faster ones are in `kernels`."""

from typing import Protocol

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models import kernels, taps
from bertjax.models.config import EncoderConfig
from bertjax.models.dropout import attention_dropout, drops, seeds_of
from bertjax.models.fixed import Attend, with_fixed_heads
from bertjax.models.kernels import PLAIN, AttentionInputs, attend_by_kernel, implementation_at
from bertjax.models.layers import Dense, precision_of
from bertjax.models.visibility import Placed, Queries, Visibility, visible


def attend(
    query_BQHD: jax.Array,
    key_BTHD: jax.Array,
    value_BTHD: jax.Array,
    mask_BQT: jax.Array,
    dropout_rate: float,
    seeds_BH2: jax.Array | None,
    bias_BHQT: jax.Array | None = None,
    columns_BQ: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Scaled dot-product attention: return context [B, Q, H, D / H] and probabilities before dropout; float32 softmax.

    Vaswani et al. (2017, section 3.2.1). Adds `bias_BHQT` after scaling; the rest is as in `attention_dropout`.
    """
    scale, options = query_BQHD.shape[-1] ** -0.5, {"precision": precision_of(key_BTHD.dtype)}
    # Scale the queries, not the logits: D numbers per token instead of H T.
    logits_BHQT = jnp.einsum("bqhd,bthd->bhqt", query_BQHD * scale, key_BTHD, **options)
    probabilities_BHQT = jax.nn.softmax(visible(logits_BHQT, mask_BQT[:, None], bias_BHQT)).astype(value_BTHD.dtype)
    kept_BHQT = attention_dropout(probabilities_BHQT, dropout_rate, seeds_BH2, columns_BQ)
    return jnp.einsum("bhqt,bthd->bqhd", kept_BHQT, value_BTHD, **options), probabilities_BHQT


def attend_plainly(inputs: AttentionInputs, by: Attend | None = None) -> tuple[jax.Array, jax.Array]:
    """Return what `attend` does, or `by` with the arguments of `attend`; fixed heads come first."""
    mask_BQT = inputs.visibility.mask_BQT(inputs.columns_BQ, inputs.rank_BQ)
    # In XLNet, two streams share columns but draw dropout separately, so columns cannot identify their draws.
    drawn_BQ = inputs.columns_BQ if inputs.rank_BQ is None else None
    seeds_BH2 = None if inputs.key is None else seeds_of(inputs.key, *inputs.query_BQHD.shape[0:3:2])
    apply = by or attend
    if inputs.fixed_heads:
        apply = with_fixed_heads(apply, inputs.fixed_heads, inputs.visibility, inputs.columns_BQ)
    return apply(*inputs[:3], mask_BQT, inputs.rate, seeds_BH2, inputs.bias_BHQT, drawn_BQ)


class Positions(Protocol):
    """Positions that attention itself reads, such as `bertjax.models.rotary.Rotary`: a pytree with this method."""

    def apply(self, config: EncoderConfig, query_BQHD: jax.Array, key_BTHD: jax.Array, at: Queries | None) -> Placed:
        """Return queries, keys and bias; `at` has the columns of the queries, and is None if they are all tokens."""


class SelfAttention(nn.Module):
    """Multi-head self-attention with output projection (Vaswani et al., 2017, section 3.2.2)."""

    config: EncoderConfig

    @nn.compact
    def __call__(
        self,
        queries: Queries | None,
        keys_BTD: jax.Array,
        values_BTD: jax.Array,
        visibility: Visibility,
        key: jax.Array | None,
        positions: Positions | None = None,
    ) -> jax.Array:
        """Return the projected context [B, Q, D] (or inner width instead of D) for the queries, or for all tokens.

        Args:
          queries: states that attend; None for all tokens.
          keys_BTD, values_BTD: states to attend to, and states of the same tokens to average.
          key: dropout key; None for no dropout.
          positions: positions of all tokens, if queries and keys depend on them.

        Raises:
          CannotCompute: the attention implementation does not support an input, see `AttentionInputs`.
        """
        config, count = self.config, self.config.learned_heads
        queries_BQD, columns_BQ, rank_BQ, _ = (keys_BTD, None, None, 0) if queries is None else queries
        query_BQHD, key_BTHD = self.projected("query", queries_BQD, count), self.projected("key", keys_BTD, count)
        value_BTHD, bias_BHQT = self.projected("value", values_BTD, config.heads), None
        if positions is not None:
            query_BQHD, key_BTHD, bias_BHQT = positions.apply(config, query_BQHD, key_BTHD, queries)
        for name, value in (("queries", query_BQHD), ("keys", key_BTHD), ("values", value_BTHD)):
            taps.capture(self, name, value)
        rate = 0.0 if key is None or not drops(config.attention_dropout) else config.attention_dropout
        key = key if rate else None
        # Everything that affects attention is a field of the inputs, so no kernel can silently ignore it.
        states = query_BQHD, key_BTHD, value_BTHD, visibility
        inputs = AttentionInputs(*states, rate, key, bias_BHQT, config.block.fixed_heads, columns_BQ, rank_BQ)
        context_BQHD = taps.scale_heads(self, self.attend(inputs), visibility.examples_BT, columns_BQ)
        taps.capture(self, "context", context_BQHD)
        stddev = config.block.output_stddev(config)
        output = Dense(config, config.layer_width, config.block.has_attention_biases, stddev=stddev, name="output")
        return output(context_BQHD.reshape(*queries_BQD.shape[:-1], config.context_width))

    def projected(self, name: str, states: jax.Array, heads: int) -> jax.Array:
        """Return queries, keys or values (`name`) of the states [B, T, D], by head: [B, T, H, D / H]."""
        dense = Dense(self.config, heads * self.config.head_channels, self.config.block.has_attention_biases, name=name)
        return dense(states).reshape(*states.shape[:-1], heads, -1)

    def attend(self, inputs: AttentionInputs) -> jax.Array:
        """Return the context [B, Q, H, D / H], using the implementation for this row length."""
        execution, tokens = self.config.execution, inputs.key_BTHD.shape[1]
        is_many = inputs.columns_BQ is None or tokens > kernels.LONGEST_WITH_PLAIN_QUERIES
        if is_many and execution.attention != PLAIN and (name := implementation_at(execution, tokens)) != PLAIN:
            return attend_by_kernel(name, inputs)
        if tokens >= kernels.SHORTEST_IN_PARTS and not self.is_mutable_collection(taps.CAPTURED):
            from bertjax.models import long_rows  # only here: who opens an export of short texts needs few modules

            return long_rows.context_of(self.config, inputs, attend_plainly)
        context_BQHD, probabilities_BHQT = attend_plainly(inputs)
        taps.capture(self, "attention", probabilities_BHQT)
        return context_BQHD
