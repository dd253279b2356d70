"""Branches: `init_state` starts a run from another run's checkpoint, with its optimizer state and step.

One trunk with a constant learning rate serves several decays (Haegele et al., 2024, arXiv 2405.18392, section 3): of
other lengths, on other data. With the data of the trunk, a branch is bit for bit what one run with its settings is.
"""

import contextlib
import hashlib
import json
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

from bertjax.config.config import Config, from_dict, plain, to_dict
from bertjax.config.typed import differences
from bertjax.runtime import storage
from bertjax.runtime.errors import Damaged, UserError, shorten
from bertjax.runtime.storage import split_name
from bertjax.training import init_from
from bertjax.training.feeds import Feeds
from bertjax.training.init_from import Source
from bertjax.training.run.checkpoint import Checkpoints, RestoredCheckpoint, described
from bertjax.training.run.record import RunRecord, read_settings
from bertjax.training.run.workdir import Workdir
from bertjax.training.schedules import learning_rate
from bertjax.training.setup import Setup, setup_after
from bertjax.training.stages import stage_at, warmup_segments

# Parts that are not logged if they differ from the trunk: `init_from.check_function` compares the model.
_NOT_LOGGED = ("init_from", "init_state", "eval", "runtime", "model")

log = logging.getLogger(__name__)


def first_step(config: Config) -> int:
    """Return the first step that a run trains itself, counted from 0.

    Raises:
      UserError: `init_state` is set, and `init_from` is not `RUN@STEP`.
    """
    if not config.init_state:
        return 0
    _, step = split_name(config.init_from)
    if not step.isdecimal():
        raise UserError(
            f"init_state=True continues a checkpoint of a run, and init_from={config.init_from!r} names none; set "
            "init_from=RUN@STEP, or init_state=False to start with the weights only"
        )
    return int(step)


def check(config: Config, resumed: RunRecord | None) -> None:
    """Check `init_state` before data is prepared.

    Args:
      resumed: record of the run if it resumes from a checkpoint of its own.

    Raises:
      UserError: `init_from` is not a checkpoint, or no step is left to train.
    """
    step = first_step(config)
    if config.init_layers:
        raise UserError(
            f"init_layers={list(config.init_layers)} selects layers, and init_state=True continues all of them; leave "
            "one out"
        )
    if resumed is None and step not in (steps := _checkpoints(config).steps()):
        listed = ", ".join(map(str, steps)) or "none"
        raise UserError(f"init_from={config.init_from} is not a checkpoint; that run has {listed}")
    _check_steps_left(config)


def source_of(resumed: RunRecord | None, setups: Sequence[Setup], feeds: Feeds) -> Source:
    """Return the fingerprint of the checkpoint, and log settings in which the run differs from the trunk.

    Raises:
      UserError: the checkpoint is damaged, or has another tokenizer, encoder or optimizer; no step is left; or see
        `check_merging` and `check_reading`.
    """
    config = setups[-1].config
    if resumed and resumed.config.init_from == config.init_from:
        return Source({}, resumed.identity.get("init_from", ""))
    _check_steps_left(config)
    step = first_step(config)
    with _naming_damage(config):
        meta = _checkpoints(config).meta(step)
    folder, _ = split_name(config.init_from)
    if meta["tokenizer"] != feeds.store.tokenizer.fingerprint:
        raise UserError(
            f"init_from={config.init_from} has another tokenizer than the corpus; set "
            f"data.tokenizer.model={folder}/tokenizer"
        )
    trained = setup_after(setups, step)
    ours = described(trained.shapes)
    if changes := differences(meta["arrays"], ours):
        raise UserError(
            f"init_from={config.init_from} has another state ({shorten(changes, separator='; ')}); use its settings of "
            "model, tasks and optimizer, or init_state=False to start with the weights only"
        )
    trunk = from_dict(meta["config"])
    init_from.check_function(trunk.model_at(stage_at(trunk.stages, max(step - 1, 0))[0]), trained)
    check_merging(trunk, config, step)
    _, identity = read_settings(Workdir.at(folder))
    # Other data have no place where the trunk stopped reading: a branch may start anywhere in them.
    if identity["data"]["store_fingerprint"] == feeds.store.fingerprint:
        check_reading(trunk, config, step)
    warn_of_rate(trunk, config, step)
    old, new = ({name: part for name, part in to_dict(of).items() if name not in _NOT_LOGGED} for of in (trunk, config))
    changed = "; ".join(differences(old, new)) or "none"
    log.info("branches off %s at step %d; changes: %s", config.init_from, step, changed)
    return Source({}, hashlib.sha256(json.dumps(meta["fingerprints"], sort_keys=True).encode()).hexdigest())


def restore(setups: Sequence[Setup]) -> RestoredCheckpoint | None:
    """Return the checkpoint that a new run branches from, or None. All processes read it together.

    Raises:
      UserError: it is damaged.
    """
    config = setups[-1].config
    step = first_step(config)
    if not config.init_state:
        return None
    with _naming_damage(config):
        return _checkpoints(config).restore(step, setup_after(setups, step).shapes)


def _check_steps_left(config: Config) -> None:
    """Raise UserError if a run has no steps after its checkpoint; steps that the data decide are checked later."""
    lengths = [stage.steps for stage in config.stages if stage.steps is not None]
    if len(lengths) == len(config.stages) and first_step(config) >= sum(lengths):
        raise UserError(
            f"init_from={config.init_from} has trained {first_step(config)} steps and the stages of this run have "
            f"{sum(lengths)} in all, counted from the first step of that run; raise stages.{len(lengths) - 1}.steps"
        )


@contextlib.contextmanager
def _naming_damage(config: Config) -> Iterator[None]:
    try:
        yield
    except Damaged as error:
        raise UserError(f"init_from={config.init_from} is damaged ({error}); branch off another checkpoint") from error


def _checkpoints(config: Config) -> Checkpoints:
    folder, _ = split_name(config.init_from)
    workdir = Workdir.at(folder)
    if not storage.exists(workdir.checkpoints):
        raise UserError(
            f"init_from={config.init_from} has no checkpoints, and init_state=True needs one: an export has weights "
            "only; name a workdir as RUN@STEP"
        )
    return Checkpoints(workdir.checkpoints)


def check_merging(trunk: Config, config: Config, step: int) -> None:
    """Check that a branch computes its model's params from the trained ones as the trunk does.

    LoRA, pruning and quantization are functions of the state (`bertjax.training.model_params`). Most of their settings
    change no array, so that equal states do not show them.

    Raises:
      UserError: LoRA or quantization has other settings, or another share of weights remains after `step` steps.
    """
    for part in ("lora", "quantization"):
        theirs, ours = (vars(getattr(of, part)) for of in (trunk, config))
        if other := [f"{part}.{name}={theirs[name]} (not {ours[name]})" for name in ours if ours[name] != theirs[name]]:
            raise UserError(
                f"init_from={config.init_from} computes another function with these weights; set {' and '.join(other)}"
            )
    before, now = (
        float(of.pruning.remaining_at(step, _steps(of))) if of.pruning.kind else 1.0 for of in (trunk, config)
    )
    if before != now:
        settings = differences(vars(trunk.pruning), vars(config.pruning), "pruning")
        settings += differences(_steps(trunk), _steps(config), "steps of the run")
        raise UserError(
            f"init_from={config.init_from} has {before:.1%} of its weights left, and at step {step} the pruning of "
            f"this run leaves {now:.1%} ({'; '.join(settings)}); use the pruning of that run, or init_state=False"
        )


def check_reading(trunk: Config, config: Config, step: int) -> None:
    """Check that a branch on the data of its trunk continues where the trunk stopped reading.

    The rows of a step follow from the stages alone (`bertjax.training.stages`), those before the checkpoint included.

    Raises:
      UserError: the run has another seed, or other row lengths, batches, examples, tasks or task weights before `step`.
    """
    other = differences(trunk.seed, config.seed, "seed")
    for name in set(trunk.tasks) & set(config.tasks):
        theirs, ours = (plain(of.tasks[name].examples) for of in (trunk, config))
        other += differences(theirs, ours, f"tasks.{name}.examples")
    if other := other + differences(_reading(trunk, step), _reading(config, step), "stages"):
        raise UserError(
            f"init_from={config.init_from} has read the same data in another order before step {step} "
            f"({shorten(other, separator='; ')}); use these settings of that run, and change later stages"
        )


def warn_of_rate(trunk: Config, config: Config, step: int) -> None:
    """Warn if the schedule of a branch is not at the trunk's learning rate when it takes over."""
    rates = [
        float(learning_rate(of.optimizer.schedule, warmup_segments(of.stages, of.optimizer))(cast(Any, step - 1)))
        for of in (trunk, config)
    ]
    if step and not math.isclose(*rates, rel_tol=1e-5):
        log.warning(
            "init_from=%s has the learning rate %.3g at step %d, and the schedule of this run has %.3g there: it jumps",
            *(config.init_from, rates[0], step, rates[1]),
        )


def _steps(config: Config) -> int:
    return sum(cast(int, stage.steps) for stage in config.stages)


def _reading(config: Config, step: int) -> list[dict[str, Any]]:
    """Return what decides the rows of the first `step` steps, by stage."""
    stages: list[dict[str, Any]] = []
    last, within = stage_at(config.stages, max(step - 1, 0))
    for index, stage in enumerate(config.stages[: last + 1]):
        weights = {name: cast(float, config.tasks[name].weight) for name in stage.among(config.tasks)}
        # Text keeps the order of the tasks, which decides their turns. Only the ratios of weights matter.
        shares = ", ".join(f"{name} {weight / sum(weights.values()):.6g}" for name, weight in weights.items())
        steps = within + 1 if index == last else cast(int, stage.steps)
        part = {"seq_len": stage.seq_len, "batch": stage.batch, "tasks": shares}
        # One task reads on through stages that differ in other settings; several start their turns again in each.
        if stages and len(weights) == 1 and stages[-1] == part | {"steps": stages[-1]["steps"]}:
            stages[-1]["steps"] += steps
        else:
            stages.append({"steps": steps, **part})
    return stages
