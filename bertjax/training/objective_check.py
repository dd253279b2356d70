"""Trace an objective on abstract shapes, so that its errors come before a corpus is prepared."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

from bertjax.config import Task
from bertjax.errors import UserError, reason, shorten
from bertjax.models.config import EncoderConfig
from bertjax.objectives import OBJECTIVES
from bertjax.objectives.slots import SlotValues, slots_of, with_slots
from bertjax.training.param_paths import path_of
from bertjax.training.shapes import batch_shapes
from bertjax.user_code import line_of


def check_objective(name: str, task: Task, encoder: EncoderConfig, seq_len: int) -> None:
    """Trace `features`, `weights` and `terms` of a task's objective without computing anything.

    Args:
      name: name of the task.
      encoder: the architecture, before it is sharded.
      seq_len: T.

    Raises:
      UserError: a term, a metric or a weight is not a scalar, a term has no weight, or the code of the user raises an
        exception; the message names the file and the line.
    """
    objective = task.objective
    setting = f"tasks.{name}.objective.kind={OBJECTIVES.kind_of(objective)!r}"
    with user_errors(setting):
        batch = batch_shapes(task, encoder.vocab_size, seq_len, rows=2)
        model, key = objective.model(encoder), jax.random.key(0)
        params = jax.eval_shape(lambda key: objective.init(model, key, batch), key)
        frozen = jax.eval_shape(lambda: objective.frozen_params(encoder))
        slots = jax.eval_shape(lambda params: slots_of(objective, params), params)
        weights = jax.eval_shape(objective.all_weights, batch)
        row_keys = jax.eval_shape(lambda key: jax.random.split(key, 2), key)
        terms, metrics, *kept = jax.eval_shape(
            lambda *arrays: objective.terms(model, *arrays, True), params, with_slots(frozen, slots), batch, row_keys
        )
        updated = slots and jax.eval_shape(objective.update_slots, slots, params, kept[0] if kept else {})
        coefficients = jax.eval_shape(objective.coefficients_at, jax.ShapeDtypeStruct((), "int32"))
    if changed := _differing(slots, updated):
        raise UserError(f"{setting}: update_slots() changes {changed}; return arrays of the same shapes and dtypes")
    for term in terms:
        if term not in weights:
            raise UserError(
                f"{setting} has the term {term!r}, and weights() returns {_listed(weights)}; add {term!r} to weights()"
            )
    for term in coefficients:
        if term not in terms:
            raise UserError(f"{setting} has a coefficient of {term!r}, and its terms are {_listed(terms)}; rename it")
    sums = {f"the term {term!r}": leaf for term, leaf in terms.items()}
    sums |= {f"the weight of {term!r}": leaf for term, leaf in weights.items()}
    sums |= {f"the coefficient of {term!r}": leaf for term, leaf in coefficients.items()}
    sums |= {f"the metric {metric!r}": leaf for metric, pair in metrics.items() for leaf in pair}
    for label, leaf in sums.items():
        if leaf.shape:
            raise UserError(f"{setting}: {label} has the shape {list(leaf.shape)}; sum it to a scalar")


def _differing(slots: SlotValues, updated: SlotValues) -> str:
    """Return the paths of slots that are missing, new, or of another shape or dtype."""
    before, after = (
        {path_of(path): (leaf.shape, leaf.dtype) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (slots, updated)
    )
    return shorten([path for path in sorted(before | after) if before.get(path) != after.get(path)])


@contextlib.contextmanager
def user_errors(setting: str) -> Iterator[None]:
    """Turn an exception of the user's code into one line that names the file and the line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the user's code may raise anything
        if not (line := line_of(error)):
            raise
        raise UserError(f"{setting} fails: {line}: {type(error).__name__}: {reason(error)}; correct it") from error


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(map(repr, values)) or "nothing"
