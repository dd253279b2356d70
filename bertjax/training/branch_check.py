"""Settings that a branch (`bertjax.training.branch`) must share with its trunk, beside those of the state's arrays."""

import logging
import math
from typing import Any, cast

from bertjax.config.config import Config, plain
from bertjax.config.typed import differences
from bertjax.runtime.errors import UserError, shorten
from bertjax.training.pruning import PruningConfig
from bertjax.training.schedules import learning_rate
from bertjax.training.stages import stage_at, warmup_segments

log = logging.getLogger(__name__)


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
    before, now = (_remaining(of.pruning, step, _steps(of)) for of in (trunk, config))
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
    if config.data.overfit:  # every step reads the same rows
        return
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


def _remaining(pruning: PruningConfig, step: int, steps: int) -> float:
    return float(pruning.remaining_at(step, steps)) if pruning.kind else 1.0


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
