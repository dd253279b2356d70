"""The training step: pure functions of state, batch and the run's constants."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from bertjax.objectives.base import Arrays, Objective
from bertjax.training.optimizer import descend
from bertjax.training.state import State


@dataclasses.dataclass(frozen=True)
class StepContext:
    """What stays the same from step to step.

    Attributes:
      objective: what is trained.
      module: its root module.
      optimizer: gives the direction of descent.
      learning_rate: step -> rate.
      seed: of dropout.
      micro_batches: parts of the batch whose gradients are summed.
      max_skipped: after more non-finite steps in a row than this, the state is frozen.
    """

    objective: Objective
    module: nn.Module
    optimizer: optax.GradientTransformation
    learning_rate: Callable[[jax.Array], jax.Array]
    seed: int
    micro_batches: int = 1
    max_skipped: int = 0


def normalised(sums: Arrays, weights: Arrays) -> Arrays:
    """{term: S / W}; a term without weight in the batch is 0."""
    return {term: sums[term] / jnp.maximum(weights[term], 1e-9) for term in sums}


def total_loss(objective: Objective, losses: Arrays) -> jax.Array:
    """Sum of coefficient x loss."""
    return sum(objective.coefficients.get(term, 1.0) * loss for term, loss in losses.items())


def gradients(context: StepContext, params: dict, frozen: dict | None, batch: Arrays, key: jax.Array):
    """Gradient of the loss over the whole batch, summed over its micro-batches.

    The weights are summed over the whole batch first, so that a micro-batch's gradient is its exact share and neither
    micro-batches nor devices change the result.

    Returns:
      (gradient, {term: S / W}, {metric: (sum, weight)}).
    """
    weights = context.objective.weights(batch)

    def share_of_loss(params, part, part_key):
        sums, metrics = context.objective.terms(context.module, params, frozen, part, part_key, True)
        losses = normalised(sums, weights)
        return total_loss(context.objective, losses), (losses, metrics)

    differentiate = jax.grad(share_of_loss, has_aux=True)
    if context.micro_batches == 1:
        gradient, (losses, metrics) = differentiate(params, batch, key)
        return gradient, losses, metrics

    # Every micro-batch takes rows from all devices: the strided split keeps each row where it is.
    parts = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(-1, context.micro_batches, *x.shape[1:]), 1, 0), batch)
    keys = jax.random.split(key, context.micro_batches)
    shapes = jax.eval_shape(differentiate, params, jax.tree.map(lambda x: x[0], parts), keys[0])
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def add(totals, part_and_key):
        return jax.tree.map(jnp.add, totals, differentiate(params, *part_and_key)), None

    (gradient, (losses, metrics)), _ = jax.lax.scan(add, zeros, (parts, keys))
    return gradient, losses, metrics


def train_step(context: StepContext, state: State, frozen: dict | None, batch: Arrays) -> tuple[State, Arrays]:
    """One step.

    A non-finite loss or gradient consumes the step and leaves params and optimizer as they were; so does every step
    after more than `max_skipped` such steps in a row.

    Returns:
      The new state, and scalars: `<term>_loss`, the metrics, `learning_rate`, `gradient_norm`, `update_norm`,
      `parameter_norm`, `skipped` (in a row) and those of `consumption`.
    """
    key = jax.random.fold_in(jax.random.key(context.seed), state["step"])
    gradient, losses, metrics = gradients(context, state["params"], frozen, batch, key)
    gradient_norm = optax.tree.norm(gradient)
    learning_rate = context.learning_rate(state["step"])
    direction, opt_state = context.optimizer.update(gradient, state["opt_state"], state["params"])
    params, update = descend(state["params"], direction, learning_rate)

    finite = jnp.isfinite(total_loss(context.objective, losses)) & jnp.isfinite(gradient_norm)
    skipped = jnp.where(finite, 0, state["skipped"] + 1)
    ended = state["skipped"] > context.max_skipped
    proceed = finite & ~ended
    params, opt_state = jax.tree.map(
        lambda new, old: jnp.where(proceed, new, old), (params, opt_state), (state["params"], state["opt_state"])
    )
    new_state = {
        "step": state["step"] + 1,
        "params": params,
        "opt_state": opt_state,
        "skipped": jnp.where(ended, state["skipped"], skipped),
    }
    return new_state, {
        **{f"{term}_loss": loss for term, loss in losses.items()},
        **{name: total / jnp.maximum(weight, 1e-9) for name, (total, weight) in metrics.items()},
        "learning_rate": learning_rate,
        "gradient_norm": gradient_norm,
        "update_norm": jnp.where(proceed, optax.tree.norm(update), 0.0),
        "parameter_norm": optax.tree.norm(params),
        "skipped": new_state["skipped"],
        **consumption(batch),
    }


def consumption(batch: Arrays) -> Arrays:
    """What a batch holds: real tokens, pairs of tokens that see each other, predicted positions, rows in use."""
    slots_N = 1 + jnp.arange(batch["example_ids_BN"].shape[1])
    lengths_BN = jnp.sum(batch["examples_BT"][:, :, None] == slots_N, axis=1)
    predicted = [jnp.sum(batch[name] > 0) for name in batch if name.endswith("_weights_BK")]
    return {
        "tokens": jnp.sum(lengths_BN),
        "token_pairs": jnp.sum(lengths_BN.astype(jnp.float32) ** 2),
        "predictions": jnp.asarray(sum(predicted)),
        "rows": jnp.sum(jnp.any(lengths_BN > 0, axis=1)),
    }


def train_chunk(
    context: StepContext, state: State, frozen: dict | None, batches: Arrays
) -> tuple[State, dict[str, jax.Array]]:
    """Consecutive steps in one dispatch: batches [steps, B, ...] in, metrics [steps] out."""

    def body(state, batch):
        return train_step(context, state, frozen, batch)

    return jax.lax.scan(body, state, batches)
