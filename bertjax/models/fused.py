"""Fused attention with dropout for TPU v4 and later (Pallas): no array over token pairs reaches HBM.

One program computes some heads of one row, for one block of queries and one group of keys (`dropout.keys_per_group`).
Rows up to 2,048 tokens are one group, so the softmax is complete. Over the groups of longer rows, the kernel keeps a
running maximum and sum (Dao et al., 2022, arXiv 2205.14135, algorithm 1) and skips groups that the block cannot see.
The backward pass recomputes logits and dropout, as in that paper; only each query's log-sum-exp is saved.

Layout: queries, keys and values stay [B, T, D], as the projections write them, so a tile of 128 lanes holds 128 / C
heads of width C. Logits are [keys, queries]: softmax sums run over sublanes, per-query numbers lie along lanes, and
only one matmul in three needs a transposed operand. T is the number of tokens in a row, K of keys in a group.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertjax.models.dropout_words import inverse_of_kept_share, keeps, keys_per_group, words, words_for
from bertjax.models.layers import kept, precision_of

# Elements in a block of logits [keys, queries] and in a block of states [tokens, lanes], sized to fit 16 MiB of VMEM.
_LOGITS, _STATES = 512 * 512, 512 * 256

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


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend_fused(plan, query_BTD, key_BTD, value_BTD, examples_B1T, seeds_B1S, window_11):
    """Return the context [B, T, D] of scaled dot-product attention with dropout.

    Args:
      plan: what all programs share.
      query_BTD, key_BTD, value_BTD: single-device arrays, heads side by side; T and D are multiples of 128.
      examples_B1T: int32, 1-based index of each token's example in its row.
      seeds_B1S: int32 words from `dropout.seeds_of`, two per head; unused if the rate is 0.
      window_11: int32, number of visible tokens to either side; unused without a window.
    """
    return _forward(plan, query_BTD, key_BTD, value_BTD, examples_B1T, seeds_B1S, window_11)[0]


def _forward(plan, query_BTD, key_BTD, value_BTD, *others):
    """Return the context and the residuals for the backward pass."""
    # Examples are passed twice: once blocked by keys, once by queries.
    grid = _Grid(plan, *query_BTD.shape)
    sums = jax.ShapeDtypeStruct(grid.sums_shape, jnp.float32)
    specs = grid.specs(lambda row, group, part, keys: (row, group, part, keys))
    context_BTD, sums_BGHT = pl.pallas_call(
        functools.partial(grouped_forward_kernel if grid.groups > 1 else forward_kernel, plan, grid.tokens),
        grid=(*grid.programs, grid.blocks, grid.groups),
        in_specs=[*specs.small, specs.queries, specs.keys, specs.keys],
        out_specs=[specs.queries, specs.sums],
        out_shape=[jax.ShapeDtypeStruct(query_BTD.shape, query_BTD.dtype), sums],
        scratch_shapes=grid.running if grid.groups > 1 else (),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")),
        interpret=plan.interpret,
        name="fused_attention_forward",
    )(others[0], *others, query_BTD, key_BTD, value_BTD)
    context_BTD, sums_BGHT = (kept(x) for x in (context_BTD, sums_BGHT))
    # With one group of keys, the backward kernel sums P dP itself and does not need the context.
    needed_BTD = context_BTD if grid.groups > 1 else None
    return context_BTD, (query_BTD, key_BTD, value_BTD, *others, needed_BTD, sums_BGHT)


def _backward(plan, residuals, gradient_BTD):
    query_BTD, key_BTD, value_BTD, *others, context_BTD, sums_BGHT = residuals
    grid = _Grid(plan, *query_BTD.shape)
    specs = grid.specs(lambda row, group, keys, part: (row, group, part, keys))
    like = jax.ShapeDtypeStruct(query_BTD.shape, query_BTD.dtype)
    of_keys = pltpu.VMEM((grid.keys, grid.lanes), jnp.float32)
    # Sums of key and value gradients stay in VMEM while the blocks of queries pass by.
    further, further_specs, scratch = [], [], [of_keys, of_keys]
    if grid.groups > 1:
        further, further_specs = [_dots(grid, gradient_BTD, context_BTD)], [specs.sums]
        scratch.append(pltpu.VMEM((grid.tokens, grid.lanes), jnp.float32))
    gradients = pl.pallas_call(
        functools.partial(backward_kernel, plan, grid.tokens, grid.groups > 1),
        grid=(*grid.programs, grid.groups, grid.blocks),
        in_specs=[
            *specs.small, specs.queries, specs.keys, specs.keys, specs.queries, specs.sums, *further_specs,
        ],
        out_specs=[specs.row if grid.groups > 1 else specs.queries, specs.keys, specs.keys],
        out_shape=[like, like, like],
        scratch_shapes=scratch,
        # Gradients accumulate in VMEM over blocks of queries and groups of keys, which therefore run in order.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary")),
        interpret=plan.interpret,
        name="fused_attention_backward",
    )(others[0], *others, query_BTD, key_BTD, value_BTD, gradient_BTD, sums_BGHT, *further)  # fmt: skip
    return *gradients, None, None, None


attend_fused.defvjp(_forward, _backward)


def _dots(grid: "_Grid", gradient_BTD: jax.Array, context_BTD: jax.Array) -> jax.Array:
    """Return each context's dot product with its gradient, float32 [B, groups of heads, H, T]."""
    rows, groups, heads, tokens = grid.sums_shape
    product_BTD = gradient_BTD.astype(jnp.float32) * context_BTD
    return product_BTD.reshape(rows, tokens, groups, heads, -1).sum(axis=-1).transpose(0, 2, 3, 1)


class _Specs(NamedTuple):
    """Array blocks that a program sees."""

    small: list[pl.BlockSpec]
    queries: pl.BlockSpec
    keys: pl.BlockSpec
    row: pl.BlockSpec
    sums: pl.BlockSpec


class _Grid:
    """Programs in a call: rows x groups of heads x blocks of queries x groups of keys."""

    def __init__(self, plan: Plan, rows: int, tokens: int, width: int):
        tiles = width // LANES
        self.tokens, self.keys = tokens, keys_per_group(tokens)
        most = max(1, _STATES // (tokens * LANES))
        # As many lanes (so heads) per program as divide the width and fit into VMEM.
        self.lanes = LANES * max(count for count in range(1, tiles + 1) if tiles % count == 0 and count <= most)
        sizes = range(LANES, tokens + 1, LANES)
        self.block = max(size for size in sizes if tokens % size == 0 and size * self.keys <= _LOGITS)
        self.blocks, self.groups = tokens // self.block, tokens // self.keys
        of_heads, heads = width // self.lanes, self.lanes // plan.width
        self.programs = (rows, of_heads)
        self.sums_shape = (rows, of_heads, heads, tokens)
        self.numbers = 2 * width // plan.width
        of_queries = pltpu.VMEM((heads, self.block), jnp.float32)
        self.running = (of_queries, of_queries, pltpu.VMEM((self.lanes, self.block), jnp.float32))

    def specs(self, order: Callable[..., tuple]) -> _Specs:
        """Return the array blocks for a grid.

        Args:
          order: maps a grid point to (row, group of heads, block of queries, group of keys).
        """

        def spec(shape, place, **options):
            return pl.BlockSpec(shape, lambda *point: place(*order(*point)), **options)

        return _Specs(
            small=[
                spec((1, 1, self.keys), lambda row, group, part, keys: (row, 0, keys)),
                spec((1, 1, self.block), lambda row, group, part, keys: (row, 0, part)),
                spec((1, 1, self.numbers), lambda row, group, part, keys: (row, 0, 0), memory_space=pltpu.SMEM),
                spec((1, 1), lambda row, group, part, keys: (0, 0), memory_space=pltpu.SMEM),
            ],
            queries=spec((1, self.block, self.lanes), lambda row, group, part, keys: (row, part, group)),
            keys=spec((1, self.keys, self.lanes), lambda row, group, part, keys: (row, keys, group)),
            row=spec((1, self.tokens, self.lanes), lambda row, group, part, keys: (row, 0, group)),
            sums=spec((1, 1, self.sums_shape[2], self.block), lambda row, group, part, keys: (row, group, 0, part)),
        )


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
