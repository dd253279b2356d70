"""Gradient accumulation: a device computes its rows in equal micro-batches, one after the other, to save memory."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.objectives.base import Arrays


def count_micro_batches(rows: int, seq_len: int, micro_tokens: int) -> int:
    """Return the smallest number of equal parts that hold at most `micro_tokens` tokens each, or a single row.

    With `micro_tokens=0`, all rows are one part.
    """
    if not micro_tokens:
        return 1
    fewest = -(-rows * seq_len // micro_tokens)
    return next(count for count in range(min(fewest, rows), rows + 1) if rows % count == 0)  # scan needs equal parts


def over_micro_batches(differentiate: Callable, count: int) -> Callable:
    """Wrap a function of all rows into one that computes them in micro-batches and adds up the results.

    Args:
      differentiate: a function of params, rows [B, ...] and one key per row. It returns (gradient, (sums, arrays with
        rows as their first axis)).
      count: number of micro-batches. The gradient and the sums of several are float32.
    """
    return differentiate if count == 1 else functools.partial(_summed, differentiate, count)


def _summed(differentiate: Callable, count: int, params: dict, batch: Arrays, keys: jax.Array) -> Any:
    parts = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), batch)
    keys = keys.reshape(count, -1)
    # A scan needs initial totals. Their shapes come from an abstract evaluation, which computes nothing.
    gradient, (sums, _) = jax.eval_shape(differentiate, params, jax.tree.map(lambda x: x[0], parts), keys[0])
    # Totals are float32: added in bfloat16, later parts would be rounded away.
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32)), (gradient, sums))

    def add(totals, part_and_key):
        gradient, (sums, rows) = differentiate(params, *part_and_key)
        return jax.tree.map(lambda total, x: total + x, totals, (gradient, sums)), rows

    (gradient, sums), rows = jax.lax.scan(add, zeros, (parts, keys))
    return gradient, (sums, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows))
