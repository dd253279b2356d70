"""Fused attention with dropout for TPU v4 and later (Pallas): no array over token pairs reaches HBM.

One program computes some heads of one row, for one block of queries and one group of keys (`dropout.keys_per_group`).
Rows up to 2,048 tokens are one group, so the softmax is complete. Over the groups of longer rows, the kernel keeps a
running maximum and sum (Dao et al., 2022, arXiv 2205.14135, algorithm 1) and skips groups that the block cannot see.
The backward pass recomputes logits and dropout, as in that paper; only each query's log-sum-exp is saved.

Layout: queries, keys and values stay [B, T, D], as the projections write them, so a tile of 128 lanes holds 128 / C
heads of width C. Logits are [keys, queries]: softmax sums run over sublanes, per-query numbers lie along lanes, and
only one matmul in three needs a transposed operand. T is the number of tokens in a row, K of keys in a group.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertjax.models.dropout_words import keys_per_group
from bertjax.models.execution import kept
from bertjax.models.fused_kernels import LANES, Plan, backward_kernel, forward_kernel, grouped_forward_kernel

# Elements in a block of logits [keys, queries] and in a block of states [tokens, lanes], sized to fit 16 MiB of VMEM.
_LOGITS, _STATES = 512 * 512, 512 * 256


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
