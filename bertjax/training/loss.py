"""A task's loss, as training and evaluation compute it on one shard of a batch."""

import dataclasses
from typing import cast

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
