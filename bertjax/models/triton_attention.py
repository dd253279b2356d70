"""Fused attention with dropout for GPUs (Pallas on Triton): no array over token pairs reaches device memory.

A forward program handles one block of queries for one row and head. Over the blocks of keys it keeps each query's
running maximum and sum (Dao et al., 2022, arXiv 2205.14135, algorithm 1). The backward pass recomputes logits and
dropout, with one kernel over blocks of queries for their gradients and one over blocks of keys for theirs.

A block of keys consists of the four runs of keys that one run of words decides (`dropout.keeps`), so each word is
hashed once. T is the number of tokens in a row, Q of queries in a block, W of words in a block, C the head width.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from bertjax.models import fused_kernels
from bertjax.models.dropout import BYTES, inverse_of_kept_share, keeps_by, keys_per_group, words, words_for
from bertjax.models.fused_kernels import UNSEEN, times
from bertjax.models.precision import precision_of

_QUERIES = 64  # in a block


@dataclasses.dataclass(frozen=True)
class Plan(fused_kernels.Plan):
    """Settings that all programs of a call share.

    Attributes:
      tokens: T.
    """

    tokens: int

    @property
    def words(self) -> int:
        """W. It divides the number of words in a group of keys, which is a multiple of 32.

        With more words, keys and values of wide heads no longer fit into registers in Triton's compiler.
        """
        return 32 if self.width <= 32 else 16

    @property
    def blocks(self) -> int:
        """Number of blocks of keys in a row."""
        return self.tokens // (BYTES * self.words)

    def first_column(self, block: jax.Array, byte: int) -> jax.Array:
        """Return the column of the first key that the given byte decides in a block's words."""
        # Words are ordered group by group, see `dropout.attention_dropout`.
        keys = keys_per_group(self.tokens)
        blocks = jnp.int32(words_for(keys) // self.words)
        group, place = jax.lax.div(block, blocks), jax.lax.rem(block, blocks)
        return group * keys + byte * words_for(keys) + place * self.words


def attend_triton(
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

    The arguments are the same as in `fused.attend_fused`.
    """
    heads = seeds_BH2.shape[1]
    tokens, width = query_BTD.shape[1:]
    plan = Plan(width // heads, rate, window is not None, saved, interpret, tokens)
    window_1 = jnp.asarray(0 if window is None else window, jnp.int32).reshape(1)
    return _attend(plan, query_BTD, key_BTD, value_BTD, examples_BT, seeds_BH2, window_1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan, query_BTD, key_BTD, value_BTD, examples_BT, seeds_BH2, window_1):
    return _forward(plan, query_BTD, key_BTD, value_BTD, examples_BT, seeds_BH2, window_1)[0]


def _forward(plan: Plan, query_BTD, key_BTD, value_BTD, *others):
    """Return the context and the residuals for the backward pass."""
    rows, heads, _ = others[1].shape
    specs = _specs(plan, heads)
    sums = jax.ShapeDtypeStruct((rows, heads, plan.tokens), jnp.float32)
    context_BTD, sums_BHT = _call(
        plan,
        _forward_kernel,
        (plan.tokens // _QUERIES, heads, rows),
        [*specs.small, specs.queries, specs.row, specs.row],
        [specs.queries, specs.numbers],
        [jax.ShapeDtypeStruct(query_BTD.shape, query_BTD.dtype), sums],
    )(*others, query_BTD, key_BTD, value_BTD)
    # Named, so that remat policies save them instead of running the forward kernel again.
    context_BTD, sums_BHT = (checkpoint_name(x, plan.saved) for x in (context_BTD, sums_BHT))
    return context_BTD, (query_BTD, key_BTD, value_BTD, *others, context_BTD, sums_BHT)


def _backward(plan: Plan, residuals, gradient_BTD):
    query_BTD, key_BTD, value_BTD, *others, context_BTD, sums_BHT = residuals
    rows, heads, _ = others[1].shape
    specs, like = _specs(plan, heads), jax.ShapeDtypeStruct(query_BTD.shape, query_BTD.dtype)
    product_BTD = gradient_BTD.astype(jnp.float32) * context_BTD
    # sum(P dP) of each query equals context times its gradient (Dao et al., 2022, appendix B), so no pass over keys.
    dots_BHT = product_BTD.reshape(rows, plan.tokens, heads, -1).sum(axis=-1).transpose(0, 2, 1)
    inputs = *others, query_BTD, key_BTD, value_BTD, gradient_BTD, sums_BHT, dots_BHT
    [query_gradient_BTD] = _call(
        plan,
        _query_gradient_kernel,
        (plan.tokens // _QUERIES, heads, rows),
        [*specs.small, specs.queries, specs.row, specs.row, specs.queries, specs.numbers, specs.numbers],
        [specs.queries],
        [like],
    )(*inputs)
    key_gradient_BTD, value_gradient_BTD = _call(
        plan,
        _key_gradients_kernel,
        (plan.blocks, heads, rows),
        [*specs.small, specs.row, specs.row, specs.row, specs.row, specs.row_numbers, specs.row_numbers],
        [specs.row, specs.row],
        [like, like],
    )(*inputs)
    return query_gradient_BTD, key_gradient_BTD, value_gradient_BTD, None, None, None


_attend.defvjp(_forward, _backward)


class _Specs(NamedTuple):
    """Array blocks that a program (block, head, row) sees.

    Attributes:
      small: example indices, seeds and window.
      queries: a block of [B, T, D].
      row: one row and head of [B, T, D].
      numbers: a block of [B, H, T].
      row_numbers: a row of [B, H, T].
    """

    small: list[pl.BlockSpec]
    queries: pl.BlockSpec
    row: pl.BlockSpec
    numbers: pl.BlockSpec
    row_numbers: pl.BlockSpec


def _specs(plan: Plan, heads: int) -> _Specs:
    return _Specs(
        [
            pl.BlockSpec((None, plan.tokens), lambda block, head, row: (row, 0)),
            pl.BlockSpec((None, None, 2), lambda block, head, row: (row, head, 0)),
            pl.BlockSpec((1,), lambda block, head, row: (0,)),
        ],
        pl.BlockSpec((None, _QUERIES, plan.width), lambda block, head, row: (row, block, head)),
        pl.BlockSpec((None, plan.tokens, plan.width), lambda block, head, row: (row, 0, head)),
        pl.BlockSpec((None, None, _QUERIES), lambda block, head, row: (row, head, block)),
        pl.BlockSpec((None, None, plan.tokens), lambda block, head, row: (row, head, 0)),
    )


def _call(plan: Plan, kernel, grid, in_specs, out_specs, out_shape):
    return pl.pallas_call(
        functools.partial(kernel, plan),
        grid=grid,
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=out_shape,
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        interpret=plan.interpret,
        name=f"attention{kernel.__name__.removesuffix('_kernel')}",
    )


def _forward_kernel(plan, examples_ref, seeds_ref, window_ref, query_ref, key_ref, value_ref, context_ref, sums_ref):
    pairs = _Pairs(plan, examples_ref, seeds_ref, window_ref, pl.program_id(0))
    query_QC = times(query_ref[...], plan.width**-0.5)

    def add(block, carry):
        context_QC, highest_Q, total_Q = carry
        words_QW = pairs.words(block)
        for byte in range(BYTES):
            keys = pl.ds(plan.first_column(block, byte), plan.words)
            value_WC = value_ref[keys, :]
            logits_QW = pairs.logits(query_QC, key_ref[keys, :], keys)
            # Online softmax: when the maximum grows, rescale the sums so far.
            before_Q, highest_Q = highest_Q, jnp.maximum(highest_Q, jnp.max(logits_QW, axis=1))
            weights_QW, shrinks_Q = jnp.exp(logits_QW - highest_Q[:, None]), jnp.exp(before_Q - highest_Q)
            total_Q = total_Q * shrinks_Q + jnp.sum(weights_QW, axis=1)
            kept_QW = pairs.dropped(weights_QW, words_QW, byte)
            context_QC = context_QC * shrinks_Q[:, None] + _product(kept_QW.astype(value_WC.dtype), value_WC)
        return context_QC, highest_Q, total_Q

    # Carry of the online softmax: context, maximum and sum.
    empty = jnp.zeros(query_QC.shape, jnp.float32), jnp.full(_QUERIES, UNSEEN), jnp.zeros(_QUERIES)
    context_QC, highest_Q, total_Q = jax.lax.fori_loop(0, plan.blocks, add, empty)
    context_ref[...] = (context_QC * (inverse_of_kept_share(plan.rate) / total_Q)[:, None]).astype(context_ref.dtype)
    sums_ref[...] = highest_Q + jnp.log(total_Q)


def _query_gradient_kernel(
    plan, examples_ref, seeds_ref, window_ref, query_ref, key_ref, value_ref, gradient_ref, sums_ref, dots_ref,
    query_out,
):  # fmt: skip
    """Query gradients, by the formulas in `fused_kernels.backward_kernel`. Context times G is passed in."""
    pairs = _Pairs(plan, examples_ref, seeds_ref, window_ref, pl.program_id(0))
    scale, inverse = plan.width**-0.5, inverse_of_kept_share(plan.rate)
    query_QC, gradient_QC, sums_Q = times(query_ref[...], scale), gradient_ref[...], sums_ref[...]
    dots_Q = dots_ref[...] / inverse

    def add(block, slopes_QC):
        words_QW = pairs.words(block)
        for byte in range(BYTES):
            keys = pl.ds(plan.first_column(block, byte), plan.words)
            key_WC = key_ref[keys, :]
            weights_QW = jnp.exp(pairs.logits(query_QC, key_WC, keys) - sums_Q[:, None])
            kept_QW = pairs.dropped(weights_QW, words_QW, byte)
            slope_QW = kept_QW * _product(gradient_QC, value_ref[keys, :].T) - weights_QW * dots_Q[:, None]
            slopes_QC += _product(slope_QW.astype(key_WC.dtype), key_WC)
        return slopes_QC

    slopes_QC = jax.lax.fori_loop(0, plan.blocks, add, jnp.zeros(query_QC.shape, jnp.float32))
    query_out[...] = (slopes_QC * (scale * inverse)).astype(query_out.dtype)


def _key_gradients_kernel(
    plan, examples_ref, seeds_ref, window_ref, query_ref, key_ref, value_ref, gradient_ref, sums_ref, dots_ref,
    key_out, value_out,
):  # fmt: skip
    """Gradients of a block of keys and of their values."""
    block = pl.program_id(0)
    scale, inverse = plan.width**-0.5, inverse_of_kept_share(plan.rate)
    # The four runs of keys that this block's words decide, one per byte.
    runs = [pl.ds(plan.first_column(block, byte), plan.words) for byte in range(BYTES)]
    keys_of = [(key_ref[run, :], value_ref[run, :]) for run in runs]

    def add(part, sums):
        pairs = _Pairs(plan, examples_ref, seeds_ref, window_ref, part)
        own = pl.ds(part * _QUERIES, _QUERIES)
        query_QC, gradient_QC, sums_Q = query_ref[own, :], gradient_ref[own, :], sums_ref[own]
        scaled_QC, dots_Q = times(query_QC, scale), dots_ref[own] / inverse
        words_QW, added = pairs.words(block), []
        # The sums are loop carries: gradients of the four runs of keys and of their values.
        for byte, (run, (key_WC, value_WC), (key_sum_WC, value_sum_WC)) in enumerate(zip(runs, keys_of, sums)):
            weights_QW = jnp.exp(pairs.logits(scaled_QC, key_WC, run) - sums_Q[:, None])
            kept_QW = pairs.dropped(weights_QW, words_QW, byte)
            slope_QW = kept_QW * _product(gradient_QC, value_WC.T) - weights_QW * dots_Q[:, None]
            key_sum_WC += _product(slope_QW.astype(query_QC.dtype).T, query_QC)
            value_sum_WC += _product(kept_QW.astype(gradient_QC.dtype).T, gradient_QC)
            added.append((key_sum_WC, value_sum_WC))
        return tuple(added)

    zeros_WC = jnp.zeros((plan.words, plan.width), jnp.float32)
    sums = jax.lax.fori_loop(0, plan.tokens // _QUERIES, add, ((zeros_WC, zeros_WC),) * BYTES)
    for run, (key_sum_WC, value_sum_WC) in zip(runs, sums):
        key_out[run, :] = (key_sum_WC * (scale * inverse)).astype(key_out.dtype)
        value_out[run, :] = (value_sum_WC * inverse).astype(value_out.dtype)


class _Pairs:
    """A block of queries paired with the keys of its row: visibility and dropout."""

    def __init__(self, plan: Plan, examples_ref, seeds_ref, window_ref, part: jax.Array):
        self._plan, self._examples_ref, self._window_ref = plan, examples_ref, window_ref
        self._seeds = seeds_ref[0], seeds_ref[1]
        self._column_Q1 = (part * _QUERIES + jnp.arange(_QUERIES, dtype=jnp.int32))[:, None]
        self._example_Q1 = examples_ref[pl.ds(part * _QUERIES, _QUERIES)][:, None]

    def logits(self, query_QC: jax.Array, key_WC: jax.Array, keys: Any) -> jax.Array:
        """Return the logits [Q, W] of scaled queries; hidden keys get a very low logit."""
        visible_QW = self._example_Q1 == self._examples_ref[keys][None]
        if self._plan.has_window:
            column_1W = (keys.start + jnp.arange(keys.size, dtype=jnp.int32))[None]
            visible_QW &= jnp.abs(self._column_Q1 - column_1W) <= self._window_ref[0]
        return jnp.where(visible_QW, _product(query_QC, key_WC.T), UNSEEN)

    def words(self, block: jax.Array) -> jax.Array | None:
        """Return the words [Q, W] that decide dropout for a block of keys; None without dropout."""
        if not self._plan.rate:
            return None
        word_1W = (block * self._plan.words + jnp.arange(self._plan.words, dtype=jnp.int32))[None]
        return words(*self._seeds, self._column_Q1, word_1W, self._plan.tokens)

    def dropped(self, weights_QW: jax.Array, words_QW: jax.Array | None, byte: int) -> jax.Array:
        """Apply dropout to the weights, without rescaling."""
        if words_QW is None:
            return weights_QW
        return jnp.where(keeps_by(words_QW, byte, self._plan.rate), weights_QW, 0.0)


def _product(left: jax.Array, right: jax.Array) -> jax.Array:
    """Matrix product in float32; float32 operands are not rounded."""
    precision = precision_of(left.dtype)
    return jnp.dot(left, right, precision=precision, preferred_element_type=jnp.float32)
