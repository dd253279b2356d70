"""FLOPs per stage: the formula, the share of it that remains with frozen parameters, and how often it is computed.

The saving from one frozen parameter depends on all others. The gradient of a frozen kernel is left out, but its layer
still propagates gradients to trainable parameters below it, and a scan over layers does so in every layer. So count the
matrix products in the traced gradient of the loss, which covers every case, LoRA and tied word embeddings included.
"""

import dataclasses
import functools
import logging
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import jax
from jax.extend.core import Jaxpr, JaxprEqn
from jax.interpreters.partial_eval import dce_jaxpr

from bertjax.models.config import Execution
from bertjax.models.flops import Counts, FlopsPart, encoder_products
from bertjax.objectives.base import Objective
from bertjax.objectives.host import defined_in
from bertjax.objectives.slots import slots_of, with_slots
from bertjax.runtime.errors import reason
from bertjax.training.loss import normalized, total_loss
from bertjax.training.setup import Setup, freezing_at, shapes_of_batch

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class StepFlops:
    """Counts the matrix-product FLOPs of training steps.

    A multiply-add is two operations, and the backward pass costs twice the forward pass (Kaplan et al., 2020, arXiv
    2001.08361, section 2.1). Recomputation in the backward pass (`runtime.remat`) is not counted.

    Attributes:
      parts: encoders that a step runs, as the objective lists them.
      share: share of these FLOPs that remains with frozen parameters, or 2 for an objective of two passes
        (see `of_stage`), measured on full batches and assumed to be equal for real tokens.
    """

    parts: tuple[FlopsPart, ...]
    share: float = 1.0

    def useful(self, counts: Counts) -> float:
        """Return the FLOPs on real tokens, given the counts from `consumption`."""
        return self.share * sum(_operations(part, counts) for part in self.parts)

    def executed(self, batches: Mapping[str, jax.Array | jax.ShapeDtypeStruct]) -> float:
        """Return the FLOPs on batches [steps, B, ...], padding included and without packing.

        Every token attends to all T tokens in its row, and heads compute all K positions and N slots.
        """
        steps, rows, seq_len = batches["tokens_BT"].shape
        # Every objective calls the weights of its predicted positions `*_weights_BK`; padded positions have weight 0.
        positions = sum(batches[name].shape[2] for name in batches if name.endswith("_weights_BK"))
        examples = batches["example_ids_BN"].shape[2]
        tokens = float(steps * rows * seq_len)
        return self.useful(Counts(tokens, tokens * seq_len, steps * rows * positions, steps * rows * examples))


def _operations(part: FlopsPart, counts: Counts) -> float:
    products = encoder_products(part.encoder, counts, part.read, part.queries, part.answers)
    products += sum(each * getattr(counts, unit) for unit, each in part.heads.items())
    # A multiply-add is 2 operations. The backward pass has two products for each forward one: dL/dx and dL/dW.
    return 2.0 * products * (3 if part.has_backward else 1)


def of_stage(setup: Setup, task: str, stage: int) -> StepFlops:
    """Return the FLOPs counter for a task's steps in a stage. With frozen parameters, this takes seconds."""
    freezing, parts = freezing_at(setup, stage), setup.losses[task].objective.flops_parts(setup.encoder)
    passes = _passes(setup, task, stage)
    if not freezing.patterns and not freezing.paths:
        return StepFlops(parts, passes)
    params = setup.shapes["params"]
    with_frozen = dataclasses.replace(setup.model_params, freezing=freezing)
    model_params = jax.eval_shape(setup.model_params, params, 0)
    # Take only the ratio from traces, so that runs with and without freezing are counted by the same formula.
    products = _gradient_products(setup, task, stage, params, lambda params: with_frozen(params, 0))
    return StepFlops(parts, passes * products / _gradient_products(setup, task, stage, model_params))


def _passes(setup: Setup, task: str, stage: int) -> float:
    """Return how often an own objective computes what `flops_parts` count once: its `terms` may run a model twice."""
    objective = setup.losses[task].objective
    kind = type(objective)
    own, counted = (defined_in(kind, name) for name in ("terms", "flops_parts"))
    # bertjax's own declare what they run, and so does a class that defines both.
    order = kind.__mro__.index
    if own.__module__.startswith("bertjax.") or order(own) >= order(counted):
        return 1.0
    params = jax.eval_shape(setup.model_params, setup.shapes["params"], 0)
    once = objective.copy_with(terms=functools.partial(counted.terms, objective))
    try:
        products = (_gradient_products(setup, task, stage, params, objective=each) for each in (objective, once))
        return operator.truediv(*products)
    except Exception as error:  # its other methods need not fit its terms
        log.warning("the FLOPs of %s may lack passes (%s); define flops_parts()", kind.__name__, reason(error))
        return 1.0


def per_step(setup: Setup, stage: int) -> float:
    """Return the FLOPs that a step executes in a stage, averaged over the tasks that take turns.

    Args:
      setup: that of the stage, with resolved batch sizes and task weights.
      stage: index into `stages`.
    """
    config, at = setup.config, setup.config.stages[stage]
    weights = {name: cast(float, config.tasks[name].weight) for name in at.among(config.tasks)}
    total = 0.0
    for name, weight in weights.items():
        shapes = shapes_of_batch(setup, name, stage)
        # `executed` expects a leading axis of steps.
        batches = {key: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype) for key, leaf in shapes.items()}
        total += weight * of_stage(setup, name, stage).executed(batches)
    return total / sum(weights.values())


def _gradient_products(
    setup: Setup,
    task: str,
    stage: int,
    params: dict,
    to_model_params: Callable[[dict], dict] = lambda params: params,
    objective: Objective | None = None,
) -> int:
    """Return the multiply-adds in the gradient of a task's loss, as `training.step` computes it.

    Args:
      setup: that of the stage.
      task: its name.
      stage: index into `stages`.
      params: shapes and dtypes of the params that have a gradient.
      to_model_params: a function from the params to those of the model.
      objective: computes the terms; the task's by default.
    """
    own, encoder = setup.losses[task].objective, setup.encoder
    # The default `Execution` has plain attention, so that its products show in the trace, and no rematerialization.
    execution = Execution(unroll=encoder.execution.unroll)
    model = own.model(dataclasses.replace(encoder, execution=execution))
    parts = dataclasses.replace(setup.losses[task], model=model, objective=objective or own)

    def loss(params: dict, frozen: dict | None, batch: dict[str, jax.Array]) -> jax.Array:
        params = to_model_params(params)
        slots = slots_of(own, jax.lax.stop_gradient(parts.own(params)))
        keys = parts.keys(0, len(batch["tokens_BT"]))
        sums, *_ = parts.terms(params, with_slots(frozen, slots), batch, keys, is_training=True)
        return total_loss(own, normalized(sums, own.weights(batch)), step=0)

    frozen = jax.eval_shape(lambda: own.frozen_params(encoder))
    batch = shapes_of_batch(setup, task, stage)
    jaxpr = jax.make_jaxpr(jax.grad(loss))(params, frozen, batch).jaxpr
    # Dead code elimination drops products that only the loss value needs, as the compiler does.
    return matrix_products(dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0])


def matrix_products(jaxpr: Jaxpr) -> int:
    """Count the multiply-adds of matrix products in a jaxpr, nested jaxprs and scan iterations included."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            # ((contracted axes of the left, of the right operand), (batch axes of both)).
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, product = cast(Any, equation.invars[0].aval), cast(Any, equation.outvars[0].aval)
            summed = [left.shape[axis] for axis in contracted]
            total += math.prod(summed) * math.prod(product.shape)
        repeats = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += repeats * sum(map(matrix_products, jaxprs_in(equation)))
    return total


def jaxprs_in(equation: JaxprEqn) -> Iterator[Jaxpr]:
    """Return the jaxprs in an equation's parameters: of a `cond`, the last branch, an accelerator's (`long_rows`)."""
    held = equation.params.values() if equation.primitive.name != "cond" else equation.params["branches"][-1:]
    inner = (getattr(value, "jaxpr", value) for value in held)
    return (value for value in inner if hasattr(value, "eqns"))
