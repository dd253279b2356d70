"""Gradients of a batch that a device computes in equal parts, one after the other, because memory is short."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.objectives.base import Arrays


def count_micro_batches(rows: int, seq_len: int, micro_tokens: int) -> int:
    """Return the least number of equal parts of a device's rows of which none holds more than `micro_tokens` tokens.

    A single row may be longer. With 0, all rows are one part.
    """
    if not micro_tokens:
        return 1
    fewest = -(-rows * seq_len // micro_tokens)
    return next(count for count in range(min(fewest, rows), rows + 1) if rows % count == 0)


def sum_over_micro_batches(
    differentiate: Callable, count: int, params: dict, batch: Arrays, keys: jax.Array, hardware_bits: bool
) -> Any:
    """Return the sums of what `differentiate` returns for each part of the rows, with gradients in float32.

    Args:
      differentiate: a function of params, the rows of a part, and its keys.
      count: number of parts.
      keys: a key for each row; with `hardware_bits`, one key for all.
    """
    parts = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), batch)
    keys = jax.random.split(keys[0], count) if hardware_bits else keys.reshape(count, -1)
    shapes = jax.eval_shape(differentiate, params, jax.tree.map(lambda x: x[0], parts), keys[0])
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32)), shapes)

    def add(totals, part_and_key):
        return jax.tree.map(lambda total, x: total + x, totals, differentiate(params, *part_and_key)), None

    return jax.lax.scan(add, zeros, (parts, keys))[0]
