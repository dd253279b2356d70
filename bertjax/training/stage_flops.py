"""The operations of the stages of a run: the formula, and the share of it that is left with frozen parameters.

Which products a frozen parameter saves depends on all others: the gradient of a kernel is left out, but its layer still
passes on the gradient of what is trained below it, and a scan over layers does so in every layer. So the share comes
from the traced gradient of the loss, which knows all of it, LoRA and tied word embeddings included.
"""

import dataclasses
import math

import jax
from jax.extend.core import Jaxpr
from jax.interpreters.partial_eval import dce_jaxpr

from bertjax.models.config import Execution
from bertjax.objectives.slots import slots_of, with_slots
from bertjax.training.flops import StepFlops
from bertjax.training.param_paths import with_heads_of
from bertjax.training.parameter_rules import Freezing
from bertjax.training.program import Program, TaskProgram
from bertjax.training.step import normalized, total_loss


def of_stage(task: TaskProgram, stage: int) -> StepFlops:
    """Return what counts the operations of a task's steps in a stage. With frozen parameters, this takes seconds."""
    freezing, parts = task.freezing_at(stage), task.objective.all_flops_parts(task.program.encoder)
    if not freezing.patterns and not freezing.paths:
        return StepFlops(parts)
    return StepFlops(parts, _gradient_products(task, stage, freezing) / _gradient_products(task, stage, Freezing()))


def per_step(program: Program, stage: int) -> float:
    """Return the operations that a step of a stage executes, the mean over the tasks that take turns.

    Args:
      program: the run; rows of a batch and weights of tasks are resolved.
      stage: index of the stage.
    """
    at, tasks = program.config.stages[stage], program.at(stage).tasks
    weights = {name: program.config.tasks[name].weight for name in at.among(tasks)}
    total = 0.0
    for name, weight in weights.items():
        shapes = tasks[name].batch_shapes(at)
        batches = {key: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype) for key, leaf in shapes.items()}
        total += weight * of_stage(tasks[name], stage).executed(batches)
    return total / sum(weights.values())


def _gradient_products(task: TaskProgram, stage: int, freezing: Freezing) -> int:
    """Return the multiply-adds in the gradient of a task's loss, as `training.step` computes it."""
    program, objective, config = task.program, task.objective, task.program.config
    # By default attention is `plain`, whose products the trace shows, and nothing is computed twice.
    execution = Execution(unroll=program.encoder.execution.unroll)
    model = objective.model(dataclasses.replace(program.encoder, execution=execution))
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
