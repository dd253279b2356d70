"""Trace a user's layers and objective on abstract shapes, so that errors show before a corpus is prepared."""

import functools
import inspect
import itertools
import logging
from collections.abc import Iterable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bertjax.config.config import Config, Task
from bertjax.config.registry import user_errors
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import first_positions
from bertjax.models.visibility import LayerInputs, Queries, Visibility
from bertjax.objectives.base import OBJECTIVES, Objective
from bertjax.objectives.host import Host, defined_in, question_of
from bertjax.objectives.slots import Slots, SlotValues, slots_of, with_slots
from bertjax.objectives.wrapper import unwrapped
from bertjax.runtime.errors import UserError, shorten
from bertjax.training.param_paths import leaves_of
from bertjax.training.setup import Setup, freezing_at, make_setups, open_teachers, resolve_encoder
from bertjax.training.shapes import batch_shapes
from bertjax.training.step import CONSUMPTION

log = logging.getLogger(__name__)
# What every step reports beside the metrics of its objective.
_REPORTED = {"learning_rate", "gradient_norm", "update_norm", "parameter_norm", "skipped", *CONSUMPTION}


def checked_setups(config: Config, vocab_size: int, devices: Sequence[jax.Device] = ()) -> tuple[Setup, ...]:
    """Return the setup of each stage.

    Raises:
      UserError: user code cannot be traced, stages do not grow or train, or the devices do not divide a sharded axis.
    """
    config = open_teachers(config)
    encoder = resolve_encoder(config, vocab_size, devices)
    for name, task in config.tasks.items():
        is_open = task.has_classes and not task.objective.classes  # until the training file is read
        of_stages = [config.task_at(index, name) for index in range(len(config.stages))]
        for index, each in enumerate([task, *of_stages]):
            kinds = (OBJECTIVES.kind_of(each.objective), each.kind, each.masking.kind if each.masking else "")
            if any(":" in kind for kind in kinds) and not is_open and each not in [task, *of_stages][:index]:
                check_objective(name, each, encoder, config.stages[-1].seq_len)
    # Classes may still be open, and not all code of an objective is traced above.
    with user_errors(f"the code of {' and '.join(config.training_kinds)}"):
        setups = make_setups(config, vocab_size, devices)
    for index, (stage, setup) in enumerate(zip(config.stages, setups, strict=True)):
        objectives = [config.tasks[name].objective for name in stage.among(config.tasks)]
        if stage.batch is not None and any(isinstance(objective, Slots) for objective in objectives):
            check_batch(f"stages.{index}.batch", stage.batch, setup.layout.mesh)  # padding must not reach the slots
        freezing_at(setup, index)
    check_growth([setup.shapes["params"] for setup in setups])
    if config.optimizer.is_outside:
        last = setups[-1]
        jax.eval_shape(last.optimizer.update, last.shapes["params"], last.shapes["opt_state"], last.shapes["params"])
    return setups


def check_batch(name: str, rows: int, mesh: Mesh) -> None:
    """Raise UserError unless the devices divide a batch's rows; `name` is the setting to blame."""
    devices = mesh.shape["data"] * mesh.shape["fsdp"]
    if rows % devices:
        raise UserError(f"{name}={rows} is not divisible by {devices} devices; use a multiple of {devices}")


def check_objective(name: str, task: Task, encoder: EncoderConfig, seq_len: int) -> None:
    """Trace `features`, `weights`, `terms` and `outputs` of a task's objective without computing anything.

    Args:
      name: task name.
      encoder: the architecture, before sharding.
      seq_len: T.

    Raises:
      UserError: a term, a metric or a weight is not a scalar, a term has no weight, `best_metric` is missing or is not
        the loss of a term, or the user's code raises an exception; the message has its file and line.
    """
    objective = task.objective
    inner = unwrapped(objective)
    setting = f"tasks.{name}.{'objective' if inner is objective else 'objective.objective'}.kind={task.kind!r}"
    if task.masking and ":" in task.masking.kind and ":" not in task.kind:  # the code of the user is not the objective
        setting = f"tasks.{name}: masking.kind={task.masking.kind!r}"
    if type(inner).bind is not Host.bind and type(inner).fingerprints is Host.fingerprints:
        raise UserError(f"{setting} defines bind() without fingerprints, so that a changed resource would not show")
    # `eval_shape` runs the user's Python on shapes only: nothing is allocated or compiled, even for a large model.
    with user_errors(setting):
        batch = batch_shapes(task, encoder.vocab_size, seq_len, rows=2)
        model, key = objective.model(encoder), jax.random.key(0)
        params = jax.eval_shape(lambda key: objective.init(model, key, batch), key)
        frozen = jax.eval_shape(lambda: objective.frozen_params(encoder))
        slots = jax.eval_shape(lambda params: slots_of(objective, params), params)
        weights = jax.eval_shape(objective.weights, batch)
        row_keys = jax.eval_shape(lambda key: jax.random.split(key, 2), key)
        returned = jax.eval_shape(
            lambda *arrays: cast(Any, objective).terms(model, *arrays, True),
            params,
            with_slots(frozen, slots),
            batch,
            row_keys,
        )
        _check_returned(setting, returned)
        terms, metrics, *kept = returned
        updated = slots and jax.eval_shape(cast(Slots, objective).update_slots, slots, params, kept[0] if kept else {})
        # An abstract step, as in the compiled step: Python code such as `if step < 100` fails here already.
        loss_weights = jax.eval_shape(
            functools.partial(objective.loss_weights, terms.keys()), jax.ShapeDtypeStruct((), "int32")
        )
        # It may be inherited, and fail on the result of the user's own `logits`.
        remedy = "override it, or return from logits() what it reads"
        with user_errors(f"{setting}: outputs(), which every evaluation calls,", remedy, is_theirs=True):
            jax.eval_shape(functools.partial(objective.outputs, model), params, batch)
    # Slots are part of the scan's carry, so their shapes and dtypes must not change.
    if changed := _differing(slots, updated):
        raise UserError(f"{setting}: update_slots() changes {changed}; return arrays of the same shapes and dtypes")
    if lacking := [term for term in terms if term not in weights]:
        raise UserError(
            f"{setting} has the term {lacking[0]!r}, and weights() returns {_listed(weights)}; add {lacking[0]!r} to "
            "weights()"
        )
    losses = [f"{term}_loss" for term in weights]
    if not (best := objective.best_metric) or (best.endswith("_loss") and best not in losses):
        problem = f"best_metric={best!r} is the loss of no term" if best else "names no best_metric"
        raise UserError(
            f"{setting} {problem}, and the best checkpoint is chosen by it; set it to a score or to one of "
            f"{_listed(losses)}"
        )
    if unknown := [term for term in loss_weights if term not in terms]:
        raise UserError(f"{setting} has a loss weight of {unknown[0]!r}, and its terms are {_listed(terms)}; rename it")
    if taken := sorted(_REPORTED & metrics.keys()):
        raise UserError(f"{setting} has the metric {taken[0]!r}, which every step has already; rename it")
    kinds = [kind for kind in OBJECTIVES.kinds if isinstance(inner, OBJECTIVES.class_of(kind))]
    if (question := question_of(inner)) and question not in kinds:
        raise UserError(
            f"{setting} has question={question!r}, and extends the kinds {_listed(kinds)}; choose one of them"
        )
    _warn_of_flops(setting, inner)
    sums = {f"the term {term!r}": leaf for term, leaf in terms.items()}
    sums |= {f"the weight of {term!r}": leaf for term, leaf in weights.items()}
    sums |= {f"the loss weight of {term!r}": leaf for term, leaf in loss_weights.items()}
    sums |= {f"the metric {metric!r}": leaf for metric, pair in metrics.items() for leaf in pair}
    # Scalars only: `jax.grad` needs a scalar loss.
    for label, leaf in sums.items():
        if leaf.shape:
            raise UserError(f"{setting}: {label} has the shape {list(leaf.shape)}; sum it to a scalar")


def _check_returned(setting: str, returned: Any) -> None:
    """Raise UserError unless `terms` returned dicts of terms and metrics, and optionally of arrays for the slots."""
    if not isinstance(returned, tuple) or len(returned) not in (2, 3) or not all(isinstance(p, dict) for p in returned):
        raise UserError(f"{setting}: terms_of() must return two dicts, {{term: sum}} and {{metric: (sum, weight)}}")
    for metric, pair in returned[1].items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise UserError(f"{setting}: the metric {metric!r} has no weight; return {{{metric!r}: (sum, weight)}}")


def _differing(slots: SlotValues, updated: SlotValues) -> str:
    """Return the paths of slots that are missing, new, or changed in shape or dtype."""
    before, after = (
        {path: (leaf.shape, leaf.dtype) for path, leaf in leaves_of(tree).items()} for tree in (slots, updated)
    )
    return shorten([path for path in sorted(before | after) if before.get(path) != after.get(path)])


def _warn_of_flops(setting: str, objective: Objective) -> None:
    """Warn if FLOPs of heads may be missing: a class overrides `heads` but inherits `flops_parts`."""
    heads, counted = (defined_in(type(objective), name) for name in ("heads", "flops_parts"))
    if issubclass(heads, counted) and heads is not counted:
        inherited = "defines no flops_parts()" if counted is Objective else f"the flops_parts() of {counted.__name__}"
        log.warning(
            "%s has its own heads() and %s, so the FLOPs of a step may lack its heads; define flops_parts(), see "
            "docs/concepts/objective_contract.md#flops",
            setting,
            inherited,
        )


def _listed(values: Iterable[str]) -> str:
    return ", ".join(map(repr, values)) or "nothing"


_ROWS, _TOKENS, _QUERIES = 2, 8, 3


def check_growth(stages: Sequence[dict]) -> None:
    """Raise UserError if stacks of layers cannot be repeated until they are as deep as in the next stage.

    A second encoder may grow by another factor than the first, such as ELECTRA's generator with a share of its layers.

    Args:
      stages: shapes of the params in each stage.
    """
    for index, (before, after) in enumerate(itertools.pairwise(stages), 1):
        for (path, leaf), target in zip(leaves_of(before).items(), jax.tree.leaves(after), strict=True):
            if leaf.shape != target.shape and target.shape[0] % leaf.shape[0]:
                raise UserError(
                    f"stages.{index} needs {target.shape[0]} layers of {path.partition('/layers/')[0]} after "
                    f"{leaf.shape[0]}, and new layers are copies of all; choose other stages.N.layers, or another "
                    "depth of this second encoder"
                )


def check_encoder(config: EncoderConfig) -> None:
    """Trace the layer and the embeddings of an architecture if they are a user's.

    Args:
      config: the architecture, with the dtype that the run computes in.

    Raises:
      UserError: the user's code raises an exception (the message has its file and line), or it returns states of
        another shape or dtype than the next layer reads.
    """
    zeros_BT, key = jnp.zeros((_ROWS, _TOKENS), jnp.int32), jax.random.key(0)
    if ":" in (kind := config.embeddings.kind):

        def embed(key: jax.Array) -> jax.Array:
            layer = config.embeddings.layer(config)
            return layer.init_with_output(key, zeros_BT, zeros_BT, zeros_BT, key, zeros_BT)[0]

        setting, width = f"model.embeddings.kind={kind!r}", config.embeddings.output_width(config)
        with user_errors(setting):
            _check_states(setting, config, jax.eval_shape(embed, key), (_ROWS, _TOKENS, width))
    if ":" in (kind := config.block.kind):

        def apply(key: jax.Array) -> list[jax.Array]:
            hidden_BTD = jnp.zeros((_ROWS, _TOKENS, config.width), config.execution.dtype)
            some = Queries(hidden_BTD[:, :_QUERIES], zeros_BT[:, :_QUERIES])  # as in the last layer
            layer, positions = config.block.layer(config), first_positions(config, key, zeros_BT)
            inputs = LayerInputs(hidden_BTD, Visibility(zeros_BT), positions=positions, number=jnp.int32(0))
            # With and without dropout, all tokens and some.
            others = (inputs._replace(key=key), inputs._replace(key=key, queries=some), inputs)
            return [layer.init_with_output(key, each)[0] for each in others]

        setting = f"model.block.kind={kind!r}"
        with user_errors(setting):
            # Python raises this error where the layer is called, not in the user's code.
            with user_errors(f"{setting} in a call with LayerInputs", "take one argument", is_theirs=True):
                inspect.signature(config.block.layer(config).__call__).bind(LayerInputs)
            config.block.products(config)
            for states, count in zip(jax.eval_shape(apply, key), (_TOKENS, _QUERIES, _TOKENS), strict=True):
                _check_states(setting, config, states, (_ROWS, count, config.width))


def _check_states(setting: str, config: EncoderConfig, states: Any, shape: tuple[int, ...]) -> None:
    expected, dtype = jax.ShapeDtypeStruct(shape, config.execution.dtype), getattr(states, "dtype", None)
    if (getattr(states, "shape", None), dtype) != (shape, expected.dtype):
        found = f"{dtype} {list(states.shape)}" if dtype else type(states).__name__
        raise UserError(
            f"{setting} returns {found} for {shape[1]} tokens or queries, and the next layer reads {expected.dtype} "
            f"{list(shape)}; return the states of the queries in config.execution.dtype"
        )
