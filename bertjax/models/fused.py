"""Fused attention with dropout for TPU v4 and later (Pallas): no array for pairs of tokens reaches memory.

A program computes some heads of one row and a block of its queries against all keys, so the softmax is complete and
needs no running maximum (Dao et al., 2022, arXiv 2205.14135, for longer rows than these). The backward pass computes
logits and dropout again, as there; it keeps only the logarithm of each query's sum.

Layout. Queries, keys and values stay [B, T, D], as the projections write them: a tile of 128 lanes holds 128 / C heads
of width C. Logits are [keys, queries], so that the sums of the softmax run over sublanes, a query's numbers lie along
lanes, and only one product in three needs a transposed operand.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertjax.models.attention_dropout import inverse_of_kept_share, keeps, words, words_per_query

_LANES = 128
# Numbers of a block of logits [keys, queries], and of a block of states [tokens, lanes]: what fits into 16 MiB.
_LOGITS, _STATES = 512 * 512, 512 * 256
_UNSEEN = -1e30


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What is the same in all programs of a call.

    Attributes:
      width: C, width of a head.
      rate: of dropout.
      has_window: whether queries see only a window.
      saved: name of what the backward pass needs, for checkpoint policies.
      interpret: whether to run without a TPU.
    """

    width: int
    rate: float
    has_window: bool
    saved: str
    interpret: bool


def attend_fused(
    query_BTD: jax.Array,
    key_BTD: jax.Array,
    value_BTD: jax.Array,
    examples_BT: jax.Array,
    seeds_BH2: jax.Array,
    window: jax.Array | int | None,
    rate: float,
    saved: str,
    interpret: bool = False,
) -> jax.Array:
    """Return the context [B, T, D] of scaled dot-product attention with dropout.

    Args:
      query_BTD, key_BTD, value_BTD: arrays of one device, heads side by side; T and D are multiples of 128.
      examples_BT: int32, number of each token's example in its row.
      seeds_BH2: int32 words of `attention_dropout.seeds_of`; unused if the rate is 0.
      window: number of visible tokens to either side; None for no limit.
      rate: share of dropout.
      saved: name of what the backward pass needs, for checkpoint policies.
      interpret: run the kernel's program without a TPU, for tests.
    """
    rows, heads, _ = seeds_BH2.shape
    plan = _Plan(query_BTD.shape[2] // heads, rate, window is not None, saved, interpret)
    window_11 = jnp.asarray(0 if window is None else window, jnp.int32).reshape(1, 1)
    seeds_B1S = seeds_BH2.reshape(rows, 1, 2 * heads)
    return _attend(plan, query_BTD, key_BTD, value_BTD, examples_BT[:, None], seeds_B1S, window_11)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan, query_BTD, key_BTD, value_BTD, examples_B1T, seeds_B1S, window_11):
    return _forward(plan, query_BTD, key_BTD, value_BTD, examples_B1T, seeds_B1S, window_11)[0]


def _forward(plan, query_BTD, key_BTD, value_BTD, *others):
    """Return the context and what the backward pass needs."""
    grid = _Grid(plan, *query_BTD.shape)
    sums = jax.ShapeDtypeStruct(grid.sums_shape, jnp.float32)
    context_BTD, sums_BGHT = pl.pallas_call(
        functools.partial(_forward_kernel, plan),
        grid=grid.sizes,
        in_specs=[*grid.small_specs, grid.queries, grid.keys, grid.keys],
        out_specs=[grid.queries, grid.sums],
        out_shape=[jax.ShapeDtypeStruct(query_BTD.shape, query_BTD.dtype), sums],
        compiler_params=grid.parameters,
        interpret=plan.interpret,
        name="fused_attention_forward",
    )(*others, query_BTD, key_BTD, value_BTD)
    context_BTD, sums_BGHT = (checkpoint_name(x, plan.saved) for x in (context_BTD, sums_BGHT))
    return context_BTD, (query_BTD, key_BTD, value_BTD, *others, sums_BGHT)


def _backward(plan, residuals, gradient_BTD):
    query_BTD, key_BTD, value_BTD, *others, sums_BGHT = residuals
    grid = _Grid(plan, *query_BTD.shape)
    like = jax.ShapeDtypeStruct(query_BTD.shape, query_BTD.dtype)
    gradients = pl.pallas_call(
        functools.partial(_backward_kernel, plan),
        grid=grid.sizes,
        in_specs=[*grid.small_specs, grid.queries, grid.keys, grid.keys, grid.queries, grid.sums],
        out_specs=[grid.queries, grid.keys, grid.keys],
        out_shape=[like, like, like],
        scratch_shapes=[pltpu.VMEM((grid.tokens, grid.lanes), jnp.float32)] * 2,
        compiler_params=grid.parameters,
        interpret=plan.interpret,
        name="fused_attention_backward",
    )(*others, query_BTD, key_BTD, value_BTD, gradient_BTD, sums_BGHT)
    return *gradients, None, None, None


_attend.defvjp(_forward, _backward)


class _Grid:
    """Programs of a call: rows x groups of heads x blocks of queries, and the blocks of arrays that each one sees."""

    def __init__(self, plan: _Plan, rows: int, tokens: int, width: int):
        tiles = width // _LANES
        most = max(1, _STATES // (tokens * _LANES))
        self.tokens = tokens
        self.lanes = _LANES * max(count for count in range(1, tiles + 1) if tiles % count == 0 and count <= most)
        block = max(
            size for size in range(_LANES, tokens + 1, _LANES) if tokens % size == 0 and size * tokens <= _LOGITS
        )
        groups, heads = width // self.lanes, self.lanes // plan.width
        self.sizes = (rows, groups, tokens // block)
        self.queries = pl.BlockSpec((1, block, self.lanes), lambda row, group, part: (row, part, group))
        self.keys = pl.BlockSpec((1, tokens, self.lanes), lambda row, group, part: (row, 0, group))
        self.sums = pl.BlockSpec((1, 1, heads, block), lambda row, group, part: (row, group, 0, part))
        self.sums_shape = (rows, groups, heads, tokens)
        numbers = 2 * width // plan.width
        self.small_specs = [
            pl.BlockSpec((1, 1, tokens), lambda row, group, part: (row, 0, 0)),
            pl.BlockSpec((1, 1, numbers), lambda row, group, part: (row, 0, 0), memory_space=pltpu.SMEM),
            pl.BlockSpec((1, 1), lambda row, group, part: (0, 0), memory_space=pltpu.SMEM),
        ]
        # Keys and values accumulate gradients over the blocks of queries, which therefore run in order.
        self.parameters = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary"))


def _forward_kernel(plan, examples_ref, seeds_ref, window_ref, query_ref, key_ref, value_ref, context_ref, sums_ref):
    unseen_TQ = _unseen(plan, examples_ref, window_ref, query_ref.shape[1])
    scale = plan.width**-0.5

    for head in range(query_ref.shape[2] // plan.width):
        lanes = pl.ds(head * plan.width, plan.width)
        query_QC, key_TC, value_TC = (ref[0, :, lanes] for ref in (query_ref, key_ref, value_ref))
        logits_TQ = _product(key_TC, _times(query_QC, scale), 1, 1) + unseen_TQ
        highest_1Q = jnp.max(logits_TQ, axis=0, keepdims=True)
        weights_TQ = jnp.exp(logits_TQ - highest_1Q)
        sum_1Q = jnp.sum(weights_TQ, axis=0, keepdims=True)
        sums_ref[0, 0, head, :] = (highest_1Q + jnp.log(sum_1Q))[0]
        weights_TQ *= inverse_of_kept_share(plan.rate) / sum_1Q
        if plan.rate:
            weights_TQ = jnp.where(_keeps(plan, seeds_ref, head, weights_TQ.shape), weights_TQ, 0.0)
        context_QC = _product(weights_TQ.astype(value_TC.dtype), value_TC, 0, 0)
        context_ref[0, :, lanes] = context_QC.astype(context_ref.dtype)


def _backward_kernel(
    plan, examples_ref, seeds_ref, window_ref, query_ref, key_ref, value_ref, gradient_ref, sums_ref,
    query_out, key_out, value_out, key_sum, value_sum,
):  # fmt: skip
    """With P the softmax, K the decisions / kept share and G the gradient of the context (queries x keys here):

        dV = (P K)' G    dP = K (G V')    dS = P (dP - sum(P dP))    dQ = dS K / sqrt(C)    dK = dS' Q / sqrt(C)

    The kept share is a factor of every result, and enters at the end.
    """
    unseen_TQ = _unseen(plan, examples_ref, window_ref, query_ref.shape[1])
    scale, inverse = plan.width**-0.5, inverse_of_kept_share(plan.rate)
    part, parts = pl.program_id(2), pl.num_programs(2)

    @pl.when(part == 0)
    def _():
        key_sum[...] = jnp.zeros_like(key_sum)
        value_sum[...] = jnp.zeros_like(value_sum)

    for head in range(query_ref.shape[2] // plan.width):
        lanes = pl.ds(head * plan.width, plan.width)
        query_QC, key_TC, value_TC = (ref[0, :, lanes] for ref in (query_ref, key_ref, value_ref))
        gradient_QC = gradient_ref[0, :, lanes]
        logits_TQ = _product(key_TC, _times(query_QC, scale), 1, 1) + unseen_TQ
        weights_TQ = jnp.exp(logits_TQ - sums_ref[0, 0, head, :][None])
        kept_TQ = weights_TQ
        if plan.rate:
            kept_TQ = jnp.where(_keeps(plan, seeds_ref, head, weights_TQ.shape), weights_TQ, 0.0)
        value_sum[:, lanes] += _product(kept_TQ.astype(value_TC.dtype), gradient_QC, 1, 0)
        both_TQ = kept_TQ * _product(value_TC, gradient_QC, 1, 1)
        slope_TQ = (both_TQ - weights_TQ * jnp.sum(both_TQ, axis=0, keepdims=True)).astype(key_TC.dtype)
        key_sum[:, lanes] += _product(slope_TQ, query_QC, 1, 0)
        query_out[0, :, lanes] = (_product(slope_TQ, key_TC, 0, 0) * (scale * inverse)).astype(query_out.dtype)

    @pl.when(part == parts - 1)
    def _():
        key_out[0] = (key_sum[...] * (scale * inverse)).astype(key_out.dtype)
        value_out[0] = (value_sum[...] * inverse).astype(value_out.dtype)


def _unseen(plan: _Plan, examples_ref, window_ref, queries: int) -> jax.Array:
    """Return what is added to the logits [T, Q] of a row's block of queries: 0 if the key is visible, else -1e30."""
    tokens = examples_ref.shape[2]
    first = pl.program_id(2) * queries
    of_queries_1Q = examples_ref[0, :, pl.ds(pl.multiple_of(first, _LANES), queries)]
    # A row of numbers becomes a column by the transposition of a whole tile.
    of_keys_T1 = jnp.broadcast_to(examples_ref[0], (_LANES, tokens)).T[:, :1]
    visible_TQ = of_keys_T1 == of_queries_1Q
    if plan.has_window:
        distances_TQ = _iota((tokens, queries), 0) - _iota((tokens, queries), 1) - first
        visible_TQ &= jnp.abs(distances_TQ) <= window_ref[0, 0]
    return jnp.where(visible_TQ, 0.0, _UNSEEN)


def _keeps(plan: _Plan, seeds_ref, head: int, shape: tuple[int, int]) -> jax.Array:
    """Return the decisions [T, Q] of dropout for a head of this program, True to keep."""
    tokens, queries = shape
    words_WQ = (words_per_query(tokens), queries)
    in_row = pl.program_id(1) * (seeds_ref.shape[2] // 2 // pl.num_programs(1)) + head
    query = _iota(words_WQ, 1) + pl.program_id(2) * queries
    before, within = seeds_ref[0, 0, 2 * in_row], seeds_ref[0, 0, 2 * in_row + 1]
    return keeps(words(before, within, query, _iota(words_WQ, 0), tokens), plan.rate, axis=0)


def _iota(shape: tuple[int, int], axis: int) -> jax.Array:
    return jax.lax.broadcasted_iota(jnp.int32, shape, axis)


def _times(x: jax.Array, factor: float) -> jax.Array:
    return (x.astype(jnp.float32) * factor).astype(x.dtype)


def _product(left: jax.Array, right: jax.Array, of_left: int, of_right: int) -> jax.Array:
    """Return the float32 product of two matrices over an axis of each; float32 ones are not rounded."""
    precision = jax.lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    return jax.lax.dot_general(
        left, right, (((of_left,), (of_right,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
    )
