"""The training step as pure functions. Read `train_step` first; each device runs `_gradients_of_shard`."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from bertjax.models.layers import float32_products
from bertjax.objectives.base import Arrays
from bertjax.objectives.slots import Slots, with_slots
from bertjax.runtime.devices import BATCH_AXES
from bertjax.training.gradient_norms import gradient_norms
from bertjax.training.loss import Loss, count_micro_batches, normalized, over_micro_batches, total_loss
from bertjax.training.model_params import ModelParams
from bertjax.training.state import State

# Names of the counts of `consumption`.
CONSUMPTION = ("tokens", "token_pairs", "predictions", "examples", "rows")


@dataclasses.dataclass(frozen=True)
class Step:
    """Constants of a task's training steps.

    Attributes:
      loss: the task's loss.
      optimizer: turns gradients into updates, not yet scaled by the learning rate.
      learning_rate: a function from the step to the rate.
      model_params: a function from trained params and the step to the params that the model runs with.
      task: task name, the key of its slots in the state.
      prefix: prefix for loss and metric names: `<task>/` if there are several tasks.
      micro_tokens: maximum tokens per micro-batch of a device, which has one row at least; 0 for no limit.
      max_skipped: after more consecutive non-finite steps than this, the state no longer changes.
      logs_gradient_norms: whether the metrics include the gradient norm of each layer.
    """

    loss: Loss
    optimizer: optax.GradientTransformation
    learning_rate: Callable[[jax.Array], jax.Array]
    model_params: Callable[[dict, jax.Array], dict] = ModelParams()
    task: str = ""
    prefix: str = ""
    micro_tokens: int = 0
    max_skipped: int = 0
    logs_gradient_norms: bool = False


def gradients(parts: Step, params: dict, frozen: dict | None, batch: Arrays, step: jax.Array):
    """Return the gradient of the loss over the whole batch, summed over micro-batches and devices.

    Returns:
      (gradient, sharded like params; {term: sum / weight}; {metric: (sum, weight)}; counts from `consumption`; arrays
      for `Slots.update_slots`, by rows).
    """
    layout = parts.loss.layout
    # Merge, prune and round before gathering: in float32 whatever the compute dtype, and with whole channels.
    params, pull_back = jax.vjp(lambda params: parts.model_params(params, step), params)
    specs = layout.specs(params)
    gradients_of_shards = layout.shard_map(
        functools.partial(_gradients_of_shard, parts),
        in_specs=(specs, layout.specs(frozen), P(BATCH_AXES), P(BATCH_AXES), P()),
        out_specs=(specs, P(), P(), P(), P(BATCH_AXES)),
    )
    keys = parts.loss.keys(step, len(batch["tokens_BT"]))
    gradient, *sums = gradients_of_shards(params, frozen, batch, keys, step)
    return *pull_back(gradient), *sums


def _gradients_of_shard(
    parts: Step, params: dict, frozen: dict | None, batch: Arrays, keys: jax.Array, step: jax.Array
) -> tuple[dict, Arrays, dict[str, Any], Arrays, Arrays]:
    loss, layout = parts.loss, parts.loss.layout
    # First sum the weights over the whole batch. Each device and micro-batch then computes its exact share of the loss
    # and of its gradient, and the result does not depend on how the batch is split.
    weights, consumed = layout.psum((loss.objective.weights(batch), consumption(batch)))
    params, frozen = layout.gather_params(params), layout.gather_params(frozen)

    def share_of_loss(params: dict, rows: Arrays, keys: jax.Array) -> tuple[jax.Array, Any]:
        sums, metrics, kept = loss.terms(params, frozen, rows, keys, is_training=True)
        losses = normalized(sums, weights)  # local sum / global weight: the shares add up to the mean
        return total_loss(loss.objective, losses, step), ((losses, metrics), kept)

    count = count_micro_batches(len(batch["tokens_BT"]), batch["tokens_BT"].shape[1], parts.micro_tokens)
    gradient, (sums, kept) = over_micro_batches(jax.grad(share_of_loss, has_aux=True), count)(params, batch, keys)
    losses, metrics = layout.psum(sums)
    return layout.reduce_gradients(gradient), losses, metrics, consumed, kept


def train_step(parts: Step, state: State, frozen: dict | None, batch: Arrays) -> tuple[State, Arrays]:
    """Train one step.

    A step whose loss, gradient or update is not finite is counted, but changes neither params, optimizer state nor
    slots (`advance`).

    Args:
      frozen: parameters that the objective reads and does not train, such as a teacher's (`Objective.frozen_params`).
      batch: core batch and features, [B, ...] over all devices.

    Returns:
      The new state, and scalars: `<term>_loss`, the metrics, `learning_rate`, `gradient_norm`, `update_norm`,
      `parameter_norm`, `skipped` (consecutive non-finite steps), and those from `consumption` and `gradient_norms`.
    """
    step, objective = state["step"], parts.loss.objective
    slots = state.get("slots", {})  # arrays that objectives carry from step to step, such as a queue
    own_slots = slots.get(parts.task, {})
    frozen = with_slots(frozen, own_slots) if own_slots else frozen
    gradient, losses, metrics, consumed, kept = gradients(parts, state["params"], frozen, batch, step)
    updates, opt_state = parts.optimizer.update(gradient, state["opt_state"], state["params"])
    learning_rate = parts.learning_rate(step)
    updates = jax.tree.map(lambda update: -learning_rate * update, updates)
    params = cast(dict, optax.apply_updates(state["params"], updates))
    new = {"params": params, "opt_state": opt_state}
    if own_slots:
        own_params = parts.loss.own(parts.model_params(params, step + 1))
        new["slots"] = slots | {parts.task: cast(Slots, objective).update_slots(own_slots, own_params, kept)}

    gradient_norm, update_norm = optax.tree.norm(gradient), optax.tree.norm(updates)
    is_finite = jnp.isfinite(total_loss(objective, losses, step) + gradient_norm + update_norm)
    state, is_applied = advance(state, new, is_finite, parts.max_skipped)
    return state, {
        **{f"{parts.prefix}{term}_loss": loss for term, loss in losses.items()},
        **{f"{parts.prefix}{name}": total / jnp.maximum(weight, 1e-9) for name, (total, weight) in metrics.items()},
        "learning_rate": learning_rate,
        "gradient_norm": gradient_norm,
        "update_norm": jnp.where(is_applied, update_norm, 0.0),
        "parameter_norm": optax.tree.norm(state["params"]),
        "skipped": state["skipped"],
        **consumed,
        **(gradient_norms(gradient, parts.loss.model) if parts.logs_gradient_norms else {}),
    }


def advance(state: State, new: State, is_finite: jax.Array, max_skipped: int) -> tuple[State, jax.Array]:
    """Return the state after a step, and whether the step is applied, bool [].

    A step that is not finite is counted and changes nothing else. So does every step after more than `max_skipped`
    consecutive ones, and the count stays: from then on the state is the last good one, until the run notices. The
    learning rate follows the steps that are counted.

    Args:
      state: the state before the step.
      new: params, optimizer state and slots after it, if it is applied.
      is_finite: bool [], whether loss, gradient and update are finite.
      max_skipped: maximum number of consecutive steps that are skipped.
    """
    has_failed = state["skipped"] > max_skipped
    is_applied = is_finite & ~has_failed  # data, not Python control flow: the step stays one compiled program
    kept = {
        name: jax.tree.map(lambda new, old: jnp.where(is_applied, new, old), values, state[name])
        for name, values in new.items()
    }
    skipped = jnp.where(has_failed, state["skipped"], jnp.where(is_finite, 0, state["skipped"] + 1))
    return state | kept | {"step": state["step"] + 1, "skipped": skipped}, is_applied


def train_chunk(parts: Step, state: State, frozen: dict | None, batches: Arrays) -> tuple[State, dict[str, jax.Array]]:
    """Train consecutive steps in one dispatch; batches are [steps, B, ...], metrics [steps]."""
    with float32_products(parts.loss.model.config.execution.dtype):
        return jax.lax.scan(lambda state, batch: train_step(parts, state, frozen, batch), state, batches)


def consumption(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Count real tokens, token pairs within an example, predicted positions, examples, and non-empty rows."""
    slots_N = 1 + jnp.arange(batch["example_ids_BN"].shape[1])  # 0 is padding, see `examples_BT`
    lengths_BN = jnp.sum(batch["examples_BT"][:, :, None] == slots_N, axis=1)
    predicted = [jnp.sum(batch[name] > 0) for name in batch if name.endswith("_weights_BK")]
    return {
        "tokens": jnp.sum(lengths_BN),
        # float32: int32 would overflow at 8,192 rows of one 512-token example each.
        "token_pairs": jnp.sum(lengths_BN.astype(jnp.float32) ** 2),  # attention is quadratic within each example
        "predictions": jnp.asarray(sum(predicted)),
        "examples": jnp.sum(lengths_BN > 0),
        "rows": jnp.sum(jnp.any(lengths_BN > 0, axis=1)),
    }
