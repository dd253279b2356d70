"""The share of a step's matrix products that is left with frozen parameters, from the traced gradient of the loss.

Which products a frozen parameter saves depends on all others: the gradient of a kernel is left out, but its layer still
passes on the gradient of what is trained below it, and a scan over layers does so in every layer. The trace knows all
of it, LoRA and tied word embeddings included.
"""

import dataclasses
import math
from typing import TYPE_CHECKING

import jax
from jax.extend.core import Jaxpr
from jax.interpreters.partial_eval import dce_jaxpr

from bertjax.models.config import Execution
from bertjax.objectives.slots import slots_of, with_slots
from bertjax.training.param_paths import with_heads_of
from bertjax.training.parameter_rules import Freezing
from bertjax.training.step import normalized, total_loss

if TYPE_CHECKING:
    from bertjax.training.program import TaskProgram


def share_left(task: "TaskProgram", stage: int) -> float:
    """Return the products of a task's step in a stage, as a share of those that it has if nothing is frozen."""
    freezing = task.freezing_at(stage)
    if not freezing.patterns and not freezing.paths:
        return 1.0
    return _gradient_products(task, stage, freezing) / _gradient_products(task, stage, Freezing())


def _gradient_products(task: "TaskProgram", stage: int, freezing: Freezing) -> int:
    """Return the multiply-adds in the gradient of a task's loss, as `training.step` computes it."""
    program, objective, config = task.program, task.objective, task.program.config
    # By default attention is `plain`, whose products the trace shows, and nothing is computed twice.
    model = objective.model(dataclasses.replace(program.encoder, execution=Execution()))
    own_heads = task.name if config.has_own_heads else ""

    def loss(params: dict, frozen: dict | None, batch: dict[str, jax.Array]) -> jax.Array:
        params = with_heads_of(freezing.without_gradient(params, config.lora.adapts), own_heads)
        keys = jax.random.split(jax.random.key(0), len(batch["tokens_BT"]))
        slots = slots_of(objective, jax.lax.stop_gradient(params))
        sums, *_ = objective.terms(model, params, with_slots(frozen, slots), batch, keys, True)
        return total_loss(objective, normalized(sums, objective.all_weights(batch)), step=0)

    params = jax.eval_shape(program.to_model_params, program.param_shapes, 0)
    frozen = jax.eval_shape(lambda: objective.frozen_params(program.encoder))
    jaxpr = jax.make_jaxpr(jax.grad(loss))(params, frozen, task.batch_shapes(config.stages[stage])).jaxpr
    # Without what the loss needs and its gradient does not: the compiler removes it too.
    return _products(dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0])


def _products(jaxpr: Jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            summed = [equation.invars[0].aval.shape[axis] for axis in contracted]
            total += math.prod(summed) * math.prod(equation.outvars[0].aval.shape)
        inner = (getattr(value, "jaxpr", value) for value in equation.params.values())
        repeats = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += repeats * sum(_products(value) for value in inner if hasattr(value, "eqns"))
    return total
