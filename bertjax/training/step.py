"""The training step as pure functions. Read `train_step` first; each device runs `_gradients_of_shard`."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from bertjax.models.model import Model
from bertjax.models.precision import float32_products
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.slots import with_slots
from bertjax.runtime.mesh import BATCH_AXES
from bertjax.training.flops import consumption
from bertjax.training.gradient_norms import gradient_norms
from bertjax.training.lora import LoraConfig
from bertjax.training.micro_batches import count_micro_batches, sum_over_micro_batches
from bertjax.training.model_params import ModelParams
from bertjax.training.optimizer import apply_updates
from bertjax.training.parallel.strategy import Layout
from bertjax.training.param_paths import with_heads_of
from bertjax.training.parameter_rules import Freezing
from bertjax.training.state import State


@dataclasses.dataclass(frozen=True)
class StepContext:
    """Constants of a task's training steps.

    Attributes:
      objective: computes the loss.
      model: the task's model.
      optimizer: turns gradients into updates, not yet scaled by the learning rate.
      learning_rate: a function from the step to the rate.
      seed: dropout seed.
      layout: the mesh and the sharding of weights on it.
      freezing: parameters that the run or the stage freezes, or that only other tasks train. Their moments and counts
        do not change either.
      lora: selects the adapted kernels; their factors are among the params.
      model_params: a function from trained params and the step to the params that the model runs with.
      task: task name, the key of its slots in the state.
      own_heads: the task name if each task has its own heads, `heads/<task>/...`; empty if tasks share heads.
      prefix: prefix for loss and metric names: `<task>/` if there are several tasks.
      micro_tokens: maximum tokens per micro-batch; gradients of micro-batches are summed. 0 for no limit.
      max_skipped: after more consecutive non-finite steps than this, the state no longer changes.
      logs_gradient_norms: whether the metrics include the gradient norm of each layer.
    """

    objective: Objective
    model: Model
    optimizer: optax.GradientTransformation
    learning_rate: Callable[[jax.Array], jax.Array]
    seed: int
    layout: Layout
    freezing: Freezing = Freezing()
    lora: LoraConfig = LoraConfig()
    model_params: Callable[[dict, jax.Array], dict] = ModelParams()
    task: str = ""
    own_heads: str = ""
    prefix: str = ""
    micro_tokens: int = 0
    max_skipped: int = 0
    logs_gradient_norms: bool = False


def normalized(sums: Arrays, weights: Arrays) -> Arrays:
    """Return {term: sum / weight}; a term without weight in the batch is 0."""
    return {term: sums[term] / jnp.maximum(weights[term], 1e-9) for term in sums}


def total_loss(objective: Objective, losses: Arrays, step: jax.Array | int) -> jax.Array:
    """Return the weighted sum of the losses at a step."""
    loss_weights = objective.loss_weights(losses.keys(), step)
    return sum(loss_weights.get(term, 1.0) * loss for term, loss in losses.items())


def shard_keys(context: StepContext, step: jax.Array | int, rows: int) -> jax.Array:
    """Return the random keys of a step, one per row of the global batch: dropout does not depend on the sharding."""
    key = jax.random.fold_in(jax.random.key(context.seed), step)
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(rows))


def gradients(context: StepContext, params: dict, frozen: dict | None, batch: Arrays, step: jax.Array):
    """Return the gradient of the loss over the whole batch, summed over micro-batches and devices.

    Returns:
      (gradient, sharded like params; {term: sum / weight}; {metric: (sum, weight)}; counts from `consumption`; arrays
      for `Slots.update_slots`, by rows).
    """
    layout = context.layout
    # Merge, prune and round before gathering: in float32 whatever the compute dtype, and with whole channels.
    params, pull_back = jax.vjp(lambda params: context.model_params(params, step), params)
    specs = layout.specs(params)
    gradients_of_shards = layout.shard_map(
        functools.partial(_gradients_of_shard, context),
        in_specs=(specs, layout.specs(frozen), P(BATCH_AXES), P(BATCH_AXES), P()),
        out_specs=(specs, P(), P(), P(), P(BATCH_AXES)),
    )
    keys = shard_keys(context, step, len(batch["tokens_BT"]))
    gradient, *sums = gradients_of_shards(params, frozen, batch, keys, step)
    return *pull_back(gradient), *sums


def _gradients_of_shard(
    context: StepContext, params: dict, frozen: dict | None, batch: Arrays, keys: jax.Array, step: jax.Array
):
    objective, layout = context.objective, context.layout
    # First sum the weights over the whole batch. Each device and micro-batch then computes its exact share of the loss
    # and of its gradient, and the result does not depend on how the batch is split.
    weights, consumed = layout.psum((objective.weights(batch), consumption(batch)))
    params, frozen = layout.gather_params(params), layout.gather_params(frozen)

    def share_of_loss(params, part, key):
        params = with_heads_of(context.freezing.without_gradient(params, context.lora.adapts), context.own_heads)
        sums, metrics, *kept = objective.terms(context.model, params, frozen, part, key, True)
        losses = normalized(sums, weights)  # local sum / global weight: the shares add up to the mean
        return total_loss(objective, losses, step), ((losses, metrics), kept[0] if kept else {})

    differentiate = jax.grad(share_of_loss, has_aux=True)
    count = count_micro_batches(*batch["tokens_BT"].shape, context.micro_tokens)
    if count == 1:
        gradient, (sums, kept) = differentiate(params, batch, keys)
    else:
        gradient, (sums, kept) = sum_over_micro_batches(differentiate, count, params, batch, keys)
    losses, metrics = layout.psum(sums)
    return layout.reduce_gradients(gradient), losses, metrics, consumed, kept


def train_step(context: StepContext, state: State, frozen: dict | None, batch: Arrays) -> tuple[State, Arrays]:
    """Train one step.

    A step with a non-finite loss or gradient is counted, but leaves params and optimizer state unchanged. So does every
    step after more than `max_skipped` consecutive non-finite steps.

    Returns:
      The new state, and scalars: `<term>_loss`, the metrics, `learning_rate`, `gradient_norm`, `update_norm`,
      `parameter_norm`, `skipped` (consecutive non-finite steps), and those from `consumption` and `gradient_norms`.
    """
    slots = state.get("slots", {})  # arrays that the objective carries from step to step, such as a queue
    own_slots = slots.get(context.task, {})
    frozen = with_slots(frozen, own_slots)
    gradient, losses, metrics, consumed, kept = gradients(context, state["params"], frozen, batch, state["step"])
    hold, zeros = context.freezing.hold, jax.tree.map(jnp.zeros_like, gradient)
    gradient = hold(gradient, zeros)  # frozen parameters must not count in the norm that clips
    gradient_norm = optax.tree.norm(gradient)
    learning_rate = context.learning_rate(state["step"])
    updates, opt_state = context.optimizer.update(gradient, state["opt_state"], state["params"])
    updates, opt_state = hold(updates, zeros), hold(opt_state, state["opt_state"])  # undoes their weight decay, too
    params, scaled_updates = apply_updates(state["params"], updates, learning_rate)

    # A non-finite step is dropped: params, optimizer state and slots keep their old values.
    finite = jnp.isfinite(total_loss(context.objective, losses, state["step"])) & jnp.isfinite(gradient_norm)
    skipped = jnp.where(finite, 0, state["skipped"] + 1)
    has_failed = state["skipped"] > context.max_skipped
    is_applied = finite & ~has_failed  # data, not Python control flow: the step stays one compiled program
    params, opt_state = (
        _select(new, old, is_applied) for new, old in ((params, state["params"]), (opt_state, state["opt_state"]))
    )
    new_state = {
        "step": state["step"] + 1,
        "params": params,
        "opt_state": opt_state,
        "skipped": jnp.where(has_failed, state["skipped"], skipped),
    }
    if own_slots:
        own_params = with_heads_of(context.model_params(params, new_state["step"]), context.own_heads)
        updated = context.objective.update_slots(own_slots, own_params, kept)
        slots = slots | {context.task: _select(updated, own_slots, is_applied)}
    new_state |= {"slots": slots} if slots else {}
    return new_state, {
        **{f"{context.prefix}{term}_loss": loss for term, loss in losses.items()},
        **{f"{context.prefix}{name}": total / jnp.maximum(weight, 1e-9) for name, (total, weight) in metrics.items()},
        "learning_rate": learning_rate,
        "gradient_norm": gradient_norm,
        "update_norm": jnp.where(is_applied, optax.tree.norm(scaled_updates), 0.0),
        "parameter_norm": optax.tree.norm(params),
        "skipped": new_state["skipped"],
        **consumed,
        **(gradient_norms(gradient, context.model.config.layers) if context.logs_gradient_norms else {}),
    }


def _select(new: Any, old: Any, is_applied: jax.Array) -> Any:
    """Return `new` if the step is applied, else `old`."""
    return jax.tree.map(lambda new, old: jnp.where(is_applied, new, old), new, old)


def train_chunk(
    context: StepContext, state: State, frozen: dict | None, batches: Arrays
) -> tuple[State, dict[str, jax.Array]]:
    """Train consecutive steps in one dispatch; batches are [steps, B, ...], metrics [steps]."""

    def body(state, batch):
        return train_step(context, state, frozen, batch)

    with float32_products(context.model.config.execution.dtype):
        return jax.lax.scan(body, state, batches)  # one compiled step, however many steps the chunk has
