"""The stage, task, rows and encoder of each step, as a function of the step number only: there is no iterator state.

The encoder of a stage may be shallower than the model or read positions with another rotary base.
"""

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.data.order import Turns
from bertjax.models import cut
from bertjax.models.config import EncoderConfig
from bertjax.runtime.errors import UserError
from bertjax.training.config import ROTARY_BASES, Stage
from bertjax.training.optim.config import OptimizerConfig
from bertjax.training.schedules import WarmupSegment


def encoder_at(model: EncoderConfig, stage: Stage) -> EncoderConfig:
    """Return the encoder that a stage trains.

    Args:
      model: architecture at the end of the run.
      stage: the stage, whose settings `check_stages` has accepted.
    """
    bases = {f"block.{name}": base for name in ROTARY_BASES if (base := getattr(stage, name))}
    return model.replace({"layers": stage.layers or model.layers, **bases})


def check_init_layers(init_from: str, init_layers: Sequence[int], model: EncoderConfig, stage: Stage) -> None:
    """Raise UserError if `init_layers` cannot be the first layers of a run.

    Args:
      init_from: the setting.
      init_layers: the setting, layers of the source.
      model: architecture of the run.
      stage: the first stage.
    """
    if not init_layers:
        return
    listed = f"init_layers={list(init_layers)}"
    if not init_from:
        raise UserError(f"{listed} selects layers of init_from, which is empty; set init_from, or init_layers=[]")
    if len(init_layers) != (depth := stage.layers or model.layers):
        raise UserError(
            f"{listed} has {len(init_layers)} entries and the run starts with {depth} layers; list {depth}, or set "
            f"model.layers={len(init_layers)}"
        )
    if moved := cut.moved(model, init_layers):
        raise UserError(f"{listed} moves layers of init_from: {moved}; list a layer of the same kind for each place")


def check_stages(model: EncoderConfig, stages: Sequence[Stage]) -> None:
    """Raise UserError if the stages do not lead to the model, by stacking copies of all layers or another rotary base.

    Args:
      model: architecture at the end of the run.
      stages: stages of the run.
    """
    depths = [stage.layers or model.layers for stage in stages]
    for index, (stage, depth) in enumerate(zip(stages, depths)):
        if stage.frozen_layers > depth:
            raise UserError(
                f"stages.{index}.frozen_layers={stage.frozen_layers} exceeds the {depth} layers of the encoder; "
                f"lower it, {depth} freezes them all"
            )
    for index, (before, after) in enumerate(zip(depths, depths[1:]), 1):
        if after not in (before, 2 * before):
            raise UserError(
                f"stages.{index} has {after} layers and the stage before has {before}; set "
                f"stages.{index}.layers to {before} or {2 * before}"
            )
        if after > before:
            _check_growth(model, index, before, after)
    if depths[-1] != model.layers:
        raise UserError(
            f"stages.{len(depths) - 1}.layers={depths[-1]} must equal model.layers={model.layers}: the last "
            "stage trains the whole model"
        )
    for index, stage in enumerate(stages):
        _check_bases(model, index, stage, is_last=index == len(stages) - 1)


def _check_bases(model: EncoderConfig, index: int, stage: Stage, is_last: bool) -> None:
    """Raise UserError if a stage has a rotary base that the block does not read, or that is not the model's in the end.

    Args:
      index: number of the stage, for the message.
    """
    for name in ROTARY_BASES:
        if not (base := getattr(stage, name)):
            continue
        setting = f"stages.{index}.{name}"
        if name not in model.block.position_settings:
            raise UserError(
                f"{setting}={base:g} has no effect: no layer of this model (model.block.kind={model.block.kind}) reads "
                f"positions with it; set {setting}=0"
            )
        if is_last and base != (own := getattr(model.block, name)):
            raise UserError(
                f"{setting}={base:g} must equal model.block.{name}={own:g}: the last stage trains the model that is "
                f"exported; set {setting}=0, or model.block.{name}={base:g}"
            )


def _check_growth(model: EncoderConfig, index: int, before: int, after: int) -> None:
    """Raise UserError if the layers on top would not compute what the layers that they copy compute."""
    grows, whole = f"stages.{index} stacks {before} layers to {after}", f"stages.{index - 1}.layers={after}"
    # A group is L / G consecutive layers, so doubling L regroups them: 0 1 becomes 0 0 1 1, not 0 1 0 1.
    if model.sharing_groups > 1:
        raise UserError(
            f"{grows}, and model.sharing_groups={model.sharing_groups} would give them the parameters of other groups; "
            f"set model.sharing_groups=1, or {whole}"
        )
    if moved := cut.moved(model, [*range(before), *range(before)]):
        raise UserError(f"{grows}, and copies would compute something else: {moved}; set {whole}")


class StepSpec(NamedTuple):
    """Training data for one step.

    Attributes:
      stage: index into `stages`.
      task: task name.
      seq_len: T.
      rows: B, rows in the global batch.
      first: ordinal of the batch's first row in the endless row sequence for this task and T.
    """

    stage: int
    task: str
    seq_len: int
    rows: int
    first: int


@dataclasses.dataclass(frozen=True)
class Timetable:
    """A run's stages, and the tasks that take turns in them.

    Attributes:
      weights: {task: relative share of steps}.
      skipped: pairs (first, last) of steps. From step `first` on, the rows of the next `last` - `first` steps are left
        out.
    """

    stages: Sequence[Stage]
    weights: Mapping[str, float]
    skipped: Sequence[tuple[int, ...]] = ()

    @property
    def steps(self) -> int:
        """Steps in the whole run."""
        return sum(stage.steps for stage in self.stages)

    def at(self, step: int) -> StepSpec:
        """Return the training data for a step in [0, steps).

        Each task has its own plans for each T. A stage continues where earlier stages with this task and T stopped.
        """
        index, within = stage_at(self.stages, step)
        stage = self.stages[index]
        tasks = stage.among(self.weights)
        turn, turns_before = (int(values[0]) for values in self._turns(index).at(np.array([within])))
        task = tasks[turn]
        first = turns_before * stage.batch + self.rows(step - within, task, stage.seq_len)
        for start, end in self.skipped:
            # Jump over the rows that steps start to end - 1 would have read.
            if start <= step:
                first += self.rows(end, task, stage.seq_len) - self.rows(start, task, stage.seq_len)
        return StepSpec(index, task, stage.seq_len, stage.batch, first)

    def rows(self, step: int, task: str, seq_len: int) -> int:
        """Return how many rows with `seq_len` tokens a task reads in the first `step` steps, without skips.

        The last stage counts as endless, so that a run that is extended later has skipped the same rows.
        """
        rows, start = 0, 0
        for index, stage in enumerate(self.stages):
            steps = max(step - start, 0)
            if index < len(self.stages) - 1:
                steps = min(steps, stage.steps)
            if steps and stage.seq_len == seq_len and task in (tasks := stage.among(self.weights)):
                rows += int(self._turns(index).taken(steps)[tasks.index(task)]) * stage.batch
            start += stage.steps
        return rows

    def edge_after(self, step: int, steps_per_call: int, others: Collection[int] = ()) -> int:
        """Return where the dispatch that starts at `step` ends.

        It ends at the next multiple of `steps_per_call`, or earlier: where the stage or the task changes, or at a step
        in `others`.
        """
        # Align dispatches to multiples of `steps_per_call`, so that a resumed run has the same ones as before.
        index, within = stage_at(self.stages, step)
        left = self.stages[index].steps - within
        end = min((step // steps_per_call + 1) * steps_per_call, step + left, *(x for x in others if x > step))
        # A dispatch is one compiled scan, over steps of one task and one batch shape.
        turns, _ = self._turns(index).at(within + np.arange(end - step))
        changes = np.flatnonzero(turns != turns[0])
        return step + int(changes[0]) if len(changes) else end

    def _turns(self, stage: int) -> Turns:
        weights = [self.weights[task] for task in self.stages[stage].among(self.weights)]
        return _turns_of(tuple(weight / sum(weights) for weight in weights))


@functools.cache
def _turns_of(shares: tuple[float, ...]) -> Turns:
    """Return cached `Turns`, since each instance computes a table of 4,096 turns."""
    return Turns(shares)


def stage_at(stages: Sequence[Stage], step: int) -> tuple[int, int]:
    """Return (index of the stage that trains a step, step within the stage)."""
    for index, stage in enumerate(stages):
        if step < stage.steps:
            return index, step
        step -= stage.steps
    raise IndexError(f"step is {step} steps after the last one of the run")


def last_stage(stages: Sequence[Stage], tasks: Collection[str], task: str) -> Stage:
    """Return the last stage that trains a task, whose row length evaluations have."""
    return next(stage for stage in reversed(stages) if task in stage.among(tasks))


def warmup_steps(stages: Sequence[Stage], optimizer: OptimizerConfig) -> int:
    """Return the number of warm-up steps of a run, which are set in steps, as a share of all steps, or in tokens.

    A warm-up in tokens has at least one step and at most the steps of the run.
    """
    if optimizer.warmup_share:
        return int(optimizer.warmup_share * sum(stage.steps for stage in stages))
    if not optimizer.warmup_tokens:
        return optimizer.warmup_steps
    steps, tokens = 0.0, optimizer.warmup_tokens
    for stage in stages:  # batches may grow during the warm-up
        within = min(stage.steps, tokens / (stage.batch * stage.seq_len))
        steps, tokens = steps + within, tokens - within * stage.batch * stage.seq_len
    return max(1, round(steps))


def warmup_segments(stages: Sequence[Stage], optimizer: OptimizerConfig) -> tuple[WarmupSegment, ...]:
    """Return the learning rate segments: one from step 0, and one from each later stage that sets a new peak.

    Raises:
      UserError: a warm-up is as long as its segment or longer.
    """
    # A stage without a peak of its own belongs to the segment before it.
    starts = [0, *(index for index, stage in enumerate(stages) if index and stage.learning_rate)]
    segments = []
    for start, end in zip(starts, [*starts[1:], len(stages)]):
        peak, warmup = stages[start].learning_rate, stages[start].warmup_steps
        setting = f"stages.{start}.warmup_steps={warmup}"
        if not start:  # the first stage has its peak and warm-up in `optimizer`
            peak, warmup = optimizer.learning_rate, warmup_steps(stages, optimizer)
            setting = _warmup_setting(stages, optimizer, warmup)
        first, steps = (sum(stage.steps for stage in part) for part in (stages[:start], stages[start:end]))
        shape = optimizer.schedule if end == len(stages) else optimizer.schedule.before_another
        shape.check(warmup, steps, setting)
        segments.append(WarmupSegment(first, steps, peak, warmup))
    return tuple(segments)


def _warmup_setting(stages: Sequence[Stage], optimizer: OptimizerConfig, steps: int) -> str:
    """Return the setting that determines a run's warm-up, with its value, for messages."""
    if optimizer.warmup_share:
        return f"optimizer.warmup_share={optimizer.warmup_share:g} ({steps:,} steps)"
    if optimizer.warmup_tokens:
        tokens = sum(stage.steps * stage.batch * stage.seq_len for stage in stages)
        return f"optimizer.warmup_tokens={optimizer.warmup_tokens:g} ({steps:,} steps; the run has {tokens:,} tokens)"
    return f"optimizer.warmup_steps={steps}"
