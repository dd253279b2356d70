"""The training step: pure functions of state, batch and the run's constants."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import PartitionSpec as P

from bertjax.mesh import BATCH_AXES
from bertjax.objectives.base import Arrays, Objective
from bertjax.training.optimizer import apply_updates, without_gradient
from bertjax.training.parallel.strategy import Layout
from bertjax.training.param_paths import path_of
from bertjax.training.stages import micro_batches
from bertjax.training.state import State


@dataclasses.dataclass(frozen=True)
class StepContext:
    """What stays the same from step to step.

    Attributes:
      objective: what is trained.
      module: its root module.
      optimizer: turns gradients into updates that the learning rate has not scaled yet.
      learning_rate: step -> rate.
      seed: of dropout.
      layout: where weights rest, and the mesh.
      frozen_paths: regular expressions; parameters whose path holds one get no gradient.
      idle_paths: of parameters that other tasks train; they and their moments stay as they are.
      prefix: of the names of losses and metrics, `<task>/` where there are several tasks.
      hardware_bits: dropout draws what the chip's own generator gives, and not threefry.
      micro_tokens: that a device computes at once, summing the gradients of such parts; 0 for all of a batch.
      max_skipped: after more non-finite steps in a row than this, the state is frozen.
    """

    objective: Objective
    module: nn.Module
    optimizer: optax.GradientTransformation
    learning_rate: Callable[[jax.Array], jax.Array]
    seed: int
    layout: Layout
    frozen_paths: tuple[str, ...] = ()
    idle_paths: frozenset[str] = frozenset()
    prefix: str = ""
    hardware_bits: bool = False
    micro_tokens: int = 0
    max_skipped: int = 0


def normalized(sums: Arrays, weights: Arrays) -> Arrays:
    """{term: S / W}; a term without weight in the batch is 0."""
    return {term: sums[term] / jnp.maximum(weights[term], 1e-9) for term in sums}


def total_loss(objective: Objective, losses: Arrays) -> jax.Array:
    """Sum of coefficient x loss."""
    return sum(objective.coefficients.get(term, 1.0) * loss for term, loss in losses.items())


def shard_keys(context: StepContext, step: jax.Array | int, rows: int) -> jax.Array:
    """Keys for the draws of a step on the device, along the batch axis like everything in `shard_map`.

    One for each row, so that a draw does not depend on devices and micro-batches; with hardware bits one for each
    shard, since those come from one stream.
    """
    if context.hardware_bits:
        return jax.random.split(
            jax.random.fold_in(jax.random.key(context.seed, impl="rbg"), step), context.layout.shards
        )
    key = jax.random.fold_in(jax.random.key(context.seed), step)
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(rows))


def gradients(context: StepContext, params: dict, frozen: dict | None, batch: Arrays, step: jax.Array):
    """Gradient of the loss over the whole batch, summed over its micro-batches and over the shards of its rows.

    The weights are summed over the whole batch first, so that a micro-batch's gradient is its exact share and neither
    micro-batches nor devices change the result.

    Returns:
      (gradient, laid out like params; {term: S / W}; {metric: (sum, weight)}; {what `consumption` counts}).
    """
    layout = context.layout
    specs = layout.specs(params)
    gradients_of_shards = layout.shard_map(
        functools.partial(_gradients_of_shard, context),
        in_specs=(specs, layout.specs(frozen), P(BATCH_AXES), P(BATCH_AXES)),
        out_specs=(specs, P(), P(), P()),
    )
    return gradients_of_shards(params, frozen, batch, shard_keys(context, step, len(batch["tokens_BT"])))


def _gradients_of_shard(context: StepContext, params: dict, frozen: dict | None, batch: Arrays, keys: jax.Array):
    objective, layout = context.objective, context.layout
    weights, consumed = layout.psum((objective.weights(batch), consumption(batch)))
    params, frozen = layout.gather_params(params), layout.gather_params(frozen)

    def share_of_loss(params, part, key):
        params = without_gradient(params, context.frozen_paths)
        sums, metrics = objective.terms(context.module, params, frozen, part, key, True)
        losses = normalized(sums, weights)
        return total_loss(objective, losses), (losses, metrics)

    differentiate = jax.grad(share_of_loss, has_aux=True)
    count = micro_batches(*batch["tokens_BT"].shape, context.micro_tokens)
    if count == 1:
        gradient, sums = differentiate(params, batch, keys[0] if context.hardware_bits else keys)
    else:
        gradient, sums = _over_micro_batches(context, count, differentiate, params, batch, keys)
    losses, metrics = layout.psum(sums)
    return layout.reduce_gradients(gradient), losses, metrics, consumed


def _over_micro_batches(
    context: StepContext, count: int, differentiate: Callable, params: dict, batch: Arrays, keys: jax.Array
):
    """Sums what `differentiate` gives for each part of the rows, gradients in float32."""
    parts = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), batch)
    if context.hardware_bits:
        keys = jax.random.split(keys[0], count)
    else:
        keys = keys.reshape(count, -1)
    shapes = jax.eval_shape(differentiate, params, jax.tree.map(lambda x: x[0], parts), keys[0])
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32)), shapes)

    def add(totals, part_and_key):
        return jax.tree.map(lambda total, x: total + x, totals, differentiate(params, *part_and_key)), None

    return jax.lax.scan(add, zeros, (parts, keys))[0]


def train_step(context: StepContext, state: State, frozen: dict | None, batch: Arrays) -> tuple[State, Arrays]:
    """One step.

    A non-finite loss or gradient consumes the step and leaves params and optimizer as they were; so does every step
    after more than `max_skipped` such steps in a row.

    Returns:
      The new state, and scalars: `<term>_loss`, the metrics, `learning_rate`, `gradient_norm`, `update_norm`,
      `parameter_norm`, `skipped` (in a row) and those of `consumption`.
    """
    gradient, losses, metrics, consumed = gradients(context, state["params"], frozen, batch, state["step"])
    gradient_norm = optax.tree.norm(gradient)
    learning_rate = context.learning_rate(state["step"])
    updates, opt_state = context.optimizer.update(gradient, state["opt_state"], state["params"])
    params, scaled_updates = apply_updates(state["params"], updates, learning_rate)

    finite = jnp.isfinite(total_loss(context.objective, losses)) & jnp.isfinite(gradient_norm)
    skipped = jnp.where(finite, 0, state["skipped"] + 1)
    ended = state["skipped"] > context.max_skipped
    proceed = finite & ~ended
    params, opt_state = (
        _advanced(new, old, proceed, context.idle_paths)
        for new, old in ((params, state["params"]), (opt_state, state["opt_state"]))
    )
    new_state = {
        "step": state["step"] + 1,
        "params": params,
        "opt_state": opt_state,
        "skipped": jnp.where(ended, state["skipped"], skipped),
    }
    return new_state, {
        **{f"{context.prefix}{term}_loss": loss for term, loss in losses.items()},
        **{f"{context.prefix}{name}": total / jnp.maximum(weight, 1e-9) for name, (total, weight) in metrics.items()},
        "learning_rate": learning_rate,
        "gradient_norm": gradient_norm,
        "update_norm": jnp.where(proceed, optax.tree.norm(scaled_updates), 0.0),
        "parameter_norm": optax.tree.norm(params),
        "skipped": new_state["skipped"],
        **consumed,
    }


def _advanced(new: Any, old: Any, proceed: jax.Array, idle_paths: frozenset[str]) -> Any:
    """`new` where the step proceeds; `old` elsewhere, and for params that are idle and for their moments."""

    def choose(key_path: tuple, new: jax.Array, old: jax.Array) -> jax.Array:
        path = f"/{path_of(key_path)}"  # of a moment, which ends as that of its param
        is_idle = any(path.endswith(f"/{idle}") for idle in idle_paths)
        return old if is_idle else jnp.where(proceed, new, old)

    return jax.tree_util.tree_map_with_path(choose, new, old)


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
