"""Kernels for fused attention (`bertjax.models.fused`): forward and backward.

A program handles some heads of one row, a block of Q queries and a group of K keys. Logits are [keys, queries].
"""

import dataclasses
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bertjax.models.dropout_words import inverse_of_kept_share, keeps, words, words_for
from bertjax.models.execution import precision_of

LANES = 128
UNSEEN = -1e30  # logits of hidden keys; finite, because -inf - -inf is NaN


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings that all programs of a call share.

    Attributes:
      width: C, head width.
      rate: dropout rate.
      has_window: whether queries see only a window.
      interpret: whether to run without the device.
    """

    width: int
    rate: float
    has_window: bool
    interpret: bool


class _Place(NamedTuple):
    """Part of a row that a program computes.

    Attributes:
      first_head: index of its first head.
      part: index of its block of queries.
      group: index of its group of keys.
    """

    first_head: jax.Array
    part: jax.Array
    group: jax.Array


def forward_kernel(
    plan, tokens, of_keys_ref, of_queries_ref, seeds_ref, window_ref, query_ref, key_ref, value_ref,
    context_ref, sums_ref,
):  # fmt: skip
    """Forward pass if all keys are one group, so the softmax is complete."""
    place = _Place(pl.program_id(1) * _heads(plan, query_ref), pl.program_id(2), pl.program_id(3))
    unseen_KQ = _unseen(_visible(plan, of_keys_ref, of_queries_ref, window_ref, place))
    for head in range(_heads(plan, query_ref)):
        lanes = pl.ds(head * plan.width, plan.width)
        value_KC = value_ref[0, :, lanes]
        logits_KQ = _logits(plan, query_ref, key_ref, lanes) + unseen_KQ
        highest_1Q = jnp.max(logits_KQ, axis=0, keepdims=True)
        weights_KQ = jnp.exp(logits_KQ - highest_1Q)
        sum_1Q = jnp.sum(weights_KQ, axis=0, keepdims=True)
        # Log-sum-exp per query: all that the backward pass needs to recompute the probabilities.
        sums_ref[0, 0, head, :] = (highest_1Q + jnp.log(sum_1Q))[0]
        # Normalize before the matmul, and scale for dropout in the same pass.
        weights_KQ *= inverse_of_kept_share(plan.rate) / sum_1Q
        kept_KQ = _dropped(plan, tokens, seeds_ref, head, place, weights_KQ)
        context_QC = _product(kept_KQ.astype(value_KC.dtype), value_KC, 0, 0)
        context_ref[0, :, lanes] = context_QC.astype(context_ref.dtype)


def grouped_forward_kernel(
    plan, tokens, of_keys_ref, of_queries_ref, seeds_ref, window_ref, query_ref, key_ref, value_ref,
    context_ref, sums_ref, highest_HQ, total_HQ, context_LQ,
):  # fmt: skip
    """Forward pass over several groups of keys, with each query's running maximum, sum and context (in all lanes L)."""
    place = _Place(pl.program_id(1) * _heads(plan, query_ref), pl.program_id(2), pl.program_id(3))
    visible_KQ = _visible(plan, of_keys_ref, of_queries_ref, window_ref, place)

    @pl.when(place.group == 0)
    def _():
        highest_HQ[...] = jnp.full_like(highest_HQ, UNSEEN)
        total_HQ[...] = jnp.zeros_like(total_HQ)
        context_LQ[...] = jnp.zeros_like(context_LQ)

    @pl.when(jnp.any(visible_KQ))
    def _():
        unseen_KQ = _unseen(visible_KQ)
        for head in range(_heads(plan, query_ref)):
            lanes = pl.ds(head * plan.width, plan.width)
            value_KC, before_1Q = value_ref[0, :, lanes], highest_HQ[head, :][None]
            logits_KQ = _logits(plan, query_ref, key_ref, lanes) + unseen_KQ
            highest_1Q = jnp.maximum(before_1Q, jnp.max(logits_KQ, axis=0, keepdims=True))
            weights_KQ = jnp.exp(logits_KQ - highest_1Q)
            # The maximum has grown: rescale the sums so far (online softmax).
            shrinks_1Q = jnp.exp(before_1Q - highest_1Q)
            highest_HQ[head, :] = highest_1Q[0]
            total_HQ[head, :] = total_HQ[head, :] * shrinks_1Q[0] + jnp.sum(weights_KQ, axis=0)
            kept_KQ = _dropped(plan, tokens, seeds_ref, head, place, weights_KQ)
            further_CQ = _product(value_KC, kept_KQ.astype(value_KC.dtype), 0, 0)
            context_LQ[lanes, :] = context_LQ[lanes, :] * shrinks_1Q + further_CQ

    @pl.when(place.group == pl.num_programs(3) - 1)
    def _():
        sums_ref[0, 0] = highest_HQ[...] + jnp.log(total_HQ[...])
        for head in range(_heads(plan, query_ref)):
            context_LQ[pl.ds(head * plan.width, plan.width), :] *= (
                inverse_of_kept_share(plan.rate) / total_HQ[head, :][None]
            )
        context_ref[0] = context_LQ[...].T.astype(context_ref.dtype)


def backward_kernel(
    plan, tokens, in_groups, of_keys_ref, of_queries_ref, seeds_ref, window_ref, query_ref, key_ref, value_ref,
    gradient_ref, sums_ref, *refs: Any,
):  # fmt: skip
    """Backward pass. P is the softmax, K the decisions / kept share, G the context's gradient (queries x keys here):

        dV = (P K)' G    dP = K (G V')    dS = P (dP - sum(P dP))    dQ = dS K / sqrt(C)    dK = dS' Q / sqrt(C)

    The kept share is a factor of every result and is applied at the end. With several groups of keys, sum(P dP) over
    all of them equals the dot product of context and G, which is passed in; dQ then accumulates over the whole row.
    """
    dots_ref, *others = refs if in_groups else (None, *refs)
    query_out, key_out, value_out, key_sum, value_sum, *query_sum = others
    place = _Place(pl.program_id(1) * _heads(plan, query_ref), pl.program_id(3), pl.program_id(2))
    visible_KQ = _visible(plan, of_keys_ref, of_queries_ref, window_ref, place)
    scale, inverse = plan.width**-0.5, inverse_of_kept_share(plan.rate)
    queries, is_last = query_ref.shape[1], place.part == pl.num_programs(3) - 1
    of_block = pl.ds(pl.multiple_of(place.part * queries, LANES), queries)

    @pl.when(place.part == 0)
    def _():
        # First block of queries: scratch memory is uninitialized.
        key_sum[...] = jnp.zeros_like(key_sum)
        value_sum[...] = jnp.zeros_like(value_sum)

    def compute():
        unseen_KQ = _unseen(visible_KQ)
        for head in range(_heads(plan, query_ref)):
            lanes = pl.ds(head * plan.width, plan.width)
            query_QC, key_KC, value_KC = (ref[0, :, lanes] for ref in (query_ref, key_ref, value_ref))
            gradient_QC = gradient_ref[0, :, lanes]
            logits_KQ = _logits(plan, query_ref, key_ref, lanes) + unseen_KQ
            # Recompute the probabilities from the saved log-sum-exp.
            weights_KQ = jnp.exp(logits_KQ - sums_ref[0, 0, head, :][None])
            kept_KQ = _dropped(plan, tokens, seeds_ref, head, place, weights_KQ)
            value_sum[:, lanes] += _product(kept_KQ.astype(value_KC.dtype), gradient_QC, 1, 0)
            both_KQ = kept_KQ * _product(value_KC, gradient_QC, 1, 1)
            if in_groups:
                dots_1Q = cast(Any, dots_ref)[0, 0, head, :][None] / inverse
            else:
                dots_1Q = jnp.sum(both_KQ, axis=0, keepdims=True)
            slope_KQ = (both_KQ - weights_KQ * dots_1Q).astype(key_KC.dtype)
            key_sum[:, lanes] += _product(slope_KQ, query_QC, 1, 0)
            query_slope_QC = _product(slope_KQ, key_KC, 0, 0)
            if in_groups:
                query_sum[0][of_block, lanes] += query_slope_QC
            else:
                query_out[0, :, lanes] = (query_slope_QC * (scale * inverse)).astype(query_out.dtype)

    if in_groups:

        @pl.when((place.part == 0) & (place.group == 0))
        def _():
            query_sum[0][...] = jnp.zeros_like(query_sum[0])

        # Packed rows and windows leave many groups without a visible key.
        pl.when(jnp.any(visible_KQ))(compute)

        @pl.when(is_last & (place.group == pl.num_programs(2) - 1))
        def _():
            query_out[0] = (query_sum[0][...] * (scale * inverse)).astype(query_out.dtype)
    else:
        compute()

    @pl.when(is_last)
    def _():
        key_out[0] = (key_sum[...] * (scale * inverse)).astype(key_out.dtype)
        value_out[0] = (value_sum[...] * inverse).astype(value_out.dtype)


def _heads(plan: Plan, query_ref) -> int:
    return query_ref.shape[2] // plan.width


def _visible(plan: Plan, of_keys_ref, of_queries_ref, window_ref, place: _Place) -> jax.Array:
    """Return a boolean mask [K, Q] of the keys that queries see, for one group of keys and one block of queries."""
    keys, queries = of_keys_ref.shape[2], of_queries_ref.shape[2]
    # Turn a row of numbers into a column by transposing a whole tile.
    of_keys_K1 = jnp.broadcast_to(of_keys_ref[0], (LANES, keys)).T[:, :1]
    visible_KQ = of_keys_K1 == of_queries_ref[0]
    if plan.has_window:
        # Iotas are local to the block; the scalar adds the offset between the two blocks.
        distances_KQ = (
            _iota((keys, queries), 0) - _iota((keys, queries), 1) + (place.group * keys - place.part * queries)
        )
        visible_KQ &= jnp.abs(distances_KQ) <= window_ref[0, 0]
    return visible_KQ


def _unseen(visible_KQ: jax.Array) -> jax.Array:
    """Return the mask to add to logits: 0 if the key is visible, else -1e30."""
    return jnp.where(visible_KQ, 0.0, UNSEEN)


def _logits(plan: Plan, query_ref, key_ref, lanes) -> jax.Array:
    """Return a head's logits [K, Q]."""
    return _product(key_ref[0, :, lanes], times(query_ref[0, :, lanes], plan.width**-0.5), 1, 1)


def _dropped(plan: Plan, tokens: int, seeds_ref, head: int, place: _Place, weights_KQ: jax.Array) -> jax.Array:
    """Apply dropout to a head's weights, without rescaling."""
    if not plan.rate:
        return weights_KQ
    keys, queries = weights_KQ.shape
    words_WQ = (words_for(keys), queries)
    query = _iota(words_WQ, 1) + place.part * queries
    word = _iota(words_WQ, 0) + place.group * words_for(keys)
    # Two seed words per head, interleaved in SMEM.
    before, within = (seeds_ref[0, 0, 2 * (place.first_head + head) + which] for which in (0, 1))
    keeps_KQ = keeps(words(before, within, query, word, tokens), plan.rate, axis=0)
    return jnp.where(keeps_KQ, weights_KQ, 0.0)


def _iota(shape: tuple[int, int], axis: int) -> jax.Array:
    return jax.lax.broadcasted_iota(jnp.int32, shape, axis)


def times(x: jax.Array, factor: float) -> jax.Array:
    """Multiply in float32, keeping the dtype of `x`."""
    return (x.astype(jnp.float32) * factor).astype(x.dtype)


def _product(left: jax.Array, right: jax.Array, of_left: int, of_right: int) -> jax.Array:
    """Matrix product over one axis of each operand, in float32; float32 operands are not rounded."""
    precision = precision_of(left.dtype)
    return jax.lax.dot_general(
        left, right, (((of_left,), (of_right,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
    )
