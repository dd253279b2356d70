"""A task's loss, as training and evaluation compute it on one shard of a batch, and gradient accumulation.

In gradient accumulation a device computes its rows in equal micro-batches, one after the other, to save memory.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp

from bertjax.models.model import Model
from bertjax.objectives.base import Arrays, Objective
from bertjax.training.parallel.strategy import Layout
from bertjax.training.param_paths import with_heads_of


@dataclasses.dataclass(frozen=True)
class Loss:
    """An objective with what it is computed by.

    Attributes:
      objective: computes the terms of the loss.
      model: the task's model.
      layout: the mesh and the sharding of weights on it.
      seed: dropout seed.
      own_heads: the task name if each task has its own heads, `heads/<task>/...`; empty if tasks share heads.
    """

    objective: Objective
    model: Model
    layout: Layout
    seed: int = 0
    own_heads: str = ""

    def keys(self, step: jax.Array | int, rows: int) -> jax.Array:
        """Return a step's random keys, one per row of the global batch: dropout does not depend on the sharding."""
        key = jax.random.fold_in(jax.random.key(self.seed), step)
        return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(rows))

    def own(self, params: dict) -> dict:
        """Return the params that the task's model reads, given those of all tasks."""
        return with_heads_of(params, self.own_heads)

    def terms(self, params: dict, frozen: dict | None, batch: Arrays, keys: jax.Array, is_training: bool) -> tuple:
        """Return `Objective.terms` for the params of all tasks, with {} in place of a missing third value."""
        sums, metrics, *kept = self.objective.terms(self.model, self.own(params), frozen, batch, keys, is_training)
        return sums, metrics, kept[0] if kept else {}


def normalized(sums: Arrays, weights: Arrays) -> Arrays:
    """Return {term: sum / weight}; a term without weight in the batch is 0."""
    return {term: sums[term] / jnp.maximum(weights[term], 1e-9) for term in sums}


def total_loss(objective: Objective, losses: Arrays, step: jax.Array | int) -> jax.Array:
    """Return the weighted sum of the losses at a step."""
    loss_weights = objective.loss_weights(losses.keys(), step)
    return cast(jax.Array, sum(loss_weights.get(term, 1.0) * loss for term, loss in losses.items()))


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

    def add(totals: Any, part_and_key: tuple[dict, jax.Array]) -> tuple[Any, Any]:
        gradient, (sums, rows) = differentiate(params, *part_and_key)
        return jax.tree.map(lambda total, x: total + x, totals, (gradient, sums)), rows

    (gradient, sums), rows = jax.lax.scan(add, zeros, (parts, keys))
    return gradient, (sums, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows))
