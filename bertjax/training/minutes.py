"""`stages.0.minutes`: how many steps fit into N minutes on these devices, measured once per run.

A learning rate schedule needs a number of steps before the first one, and a resumed run must keep that number. So the
first start compiles the step of the recipe, times a few real steps, and replaces the recipe's number of steps. The run
then compiles again, because the schedule is a part of the compiled step. Later starts take the number from the record.
"""

import dataclasses
import math
import time
from typing import Any, cast

import jax

from bertjax.config.config import Config
from bertjax.data.pipeline import LocalBatches, iterate
from bertjax.runtime.errors import UserError
from bertjax.training.feeds import Feeds
from bertjax.training.parallel import processes
from bertjax.training.parallel.sharding import batch_shards, put_batches
from bertjax.training.program import Program
from bertjax.training.run.record import RunRecord
from bertjax.training.stages import warmup_steps

# Time steps for this many seconds, within these limits on their number.
_SECONDS, _FEWEST, _MOST = 5.0, 2, 50
# A backward pass costs about two forward passes (Kaplan et al., 2020, arXiv 2001.08361, section 2.1), so a row costs a
# third of its training in an evaluation, which has the forward pass alone.
_EVALUATION_SHARE = 1 / 3
# Schedule settings that count steps; they keep their share of the run, as the warm-up does.
_SCHEDULE_STEPS = ("decay_steps", "end_step")
# A run that is shorter than an interval of its recipe has at most this many evaluations and checkpoints before its end.
_MOST_BETWEEN = 9


def with_steps(program: Program, feeds: Feeds, before: RunRecord | None) -> Config:
    """Return the configuration with the steps that take about `stages.0.minutes`, as measured at the first start.

    Compilation, the final evaluation and the export come on top. Warm-up and decay keep their share of the steps. A run
    that is continued with more minutes has proportionally more steps.

    Args:
      program: the run with the steps of its recipe.
      feeds: its data.
      before: record of the run if it resumes.

    Raises:
      UserError: the time is too short for two steps.
    """
    config = program.config
    stage = config.stages[0]
    if before is None:
        return scaled(config, _measured(program, feeds))
    started = before.config.stages[0]
    if not started.minutes:  # another run, which `check_identity` refuses
        return config
    steps = round(cast(int, started.steps) * cast(float, stage.minutes) / started.minutes)
    print(f"minutes: {steps:,} steps, as measured at the first start", flush=True)
    return scaled(config, steps)


def _measured(program: Program, feeds: Feeds) -> int:
    """Time the steps of a run, and return and print how many of them fit."""
    config = program.config
    stage, minutes = config.stages[0], cast(float, config.stages[0].minutes)
    own = _seconds_per_step(program, feeds)
    seconds = processes.from_writer(lambda: own, "seconds-per-step")
    rows = sum(min(config.eval.rows or math.inf, feed.plans[0].counts.rows) for feed in feeds.heldout.values())
    evaluation = rows / cast(int, stage.batch) * seconds * _EVALUATION_SHARE
    steps = steps_in(60 * minutes, seconds, evaluation, config.eval.every, cast(int, stage.steps))
    if steps < 2:
        raise UserError(
            f"stages.0.minutes={minutes:g} is less than two steps of {seconds:.3g} s; allow more, or lower "
            "stages.0.batch"
        )
    between = (steps - 1) // interval(config.eval.every, steps, cast(int, stage.steps))
    print(
        f"minutes: {steps:,} steps of {seconds:.3g} s take about {minutes:g} minutes on these devices"
        + (f", with {between:,} evaluations of {evaluation:.3g} s" if between else "")
        + "; compilation, the last evaluation and the export come on top",
        flush=True,
    )
    return steps


def steps_in(seconds: float, step: float, evaluation: float, every: int, recipe_steps: int) -> int:
    """Return the steps that fit into a time, with the evaluations between them, as two significant digits.

    Args:
      seconds: the whole time.
      step: seconds per step.
      evaluation: seconds per evaluation.
      every: steps between evaluations in the recipe.
      recipe_steps: steps of the recipe.
    """
    # A run that ends before `every` has as many evaluations as the recipe, see `interval`. Half of the time is left for
    # steps whatever they take, so a short run with slow evaluations is longer than planned.
    between = min((recipe_steps - 1) // every, _MOST_BETWEEN) * evaluation
    short = max(seconds - between, seconds / 2) / step
    long = seconds / (step + evaluation / every)
    steps = long if long > every else min(short, every)
    digits = 10 ** max(0, math.floor(math.log10(max(steps, 1))) - 1)
    return int(steps // digits * digits)


def interval(every: int, steps: int, recipe_steps: int) -> int:
    """Return the steps between two evaluations or checkpoints in a run of other steps than the recipe.

    An interval that is longer than the run keeps its share of the steps, as the warm-up does, but is at least a tenth
    of them: a million steps with 1,000 evaluations must not become 500 with an evaluation after each.
    """
    if every <= steps:
        return every
    parts = _MOST_BETWEEN + 1
    return max(-(-every * steps // recipe_steps), -(-steps // parts))  # rounded up: not more of them than in the recipe


def scaled(config: Config, steps: int) -> Config:
    """Return a resolved configuration with other steps, and with warm-up, decay and long intervals of the same share.

    Args:
      config: the configuration, with the steps of its recipe.
      steps: steps of the run.
    """
    (stage,), optimizer = config.stages, config.optimizer
    of = cast(int, stage.steps)
    stages = (dataclasses.replace(stage, steps=steps),)
    # Rounded down: warm-up and decay together must not be longer than the run.
    lengths = {
        name: max(1, steps * length // of)
        for name in _SCHEDULE_STEPS
        if (length := getattr(optimizer.schedule, name, 0))
    }
    optimizer = dataclasses.replace(optimizer, schedule=dataclasses.replace(optimizer.schedule, **lengths))
    warmup = warmup_steps(stages, optimizer) if optimizer.warmup_share else steps * optimizer.warmup_steps // of
    optimizer = dataclasses.replace(optimizer, warmup_steps=warmup, warmup_tokens=0.0)
    evaluations = dataclasses.replace(config.eval, every=interval(config.eval.every, steps, of))
    saves = dataclasses.replace(config.runtime, save_every=interval(config.runtime.save_every, steps, of))
    return dataclasses.replace(config, stages=stages, optimizer=optimizer, eval=evaluations, runtime=saves)


def _seconds_per_step(program: Program, feeds: Feeds) -> float:
    """Return the mean seconds of a step, over the tasks that take turns."""
    weights = {name: task.weight or 0.0 for name, task in program.config.tasks.items()}
    state, total = program.init_state(), 0.0
    for name, weight in weights.items():
        state, seconds = _time_task(program, feeds, name, state)
        total += weight * seconds
    return total / sum(weights.values())


def _time_task(program: Program, feeds: Feeds, name: str, state: Any) -> tuple[Any, float]:
    """Train with real batches of one task, and return the state and the seconds per step without compilation."""
    (stage,), runtime, task = program.config.stages, program.config.runtime, program.tasks[name]
    # Rows are endless, but the timetable ends with the run, which may be shorter than this measurement.
    endless = dataclasses.replace(stage, steps=2**30)
    timetable = dataclasses.replace(program.timetable, stages=(endless,), weights={name: 1.0})
    make = LocalBatches(timetable.at, feeds.train, *batch_shards(program.mesh))
    batches = iterate(make, 0, timetable.steps, runtime.workers, prefetch=2)
    chunk, in_call = task.chunk_at(0), runtime.steps_per_call

    def seconds_of(calls: int) -> float:
        nonlocal state
        started = time.perf_counter()
        for _ in range(calls):
            local = [next(batches) for _ in range(in_call)]
            state, _ = chunk(state, task.frozen, put_batches(local, program.mesh))
        jax.block_until_ready(state)
        return (time.perf_counter() - started) / calls

    seconds_of(1)  # compiles
    # All processes must make the same calls, since a step exchanges gradients between them.
    own = seconds_of(1)
    first = processes.from_writer(lambda: own, "first-step")
    seconds = seconds_of(min(max(round(_SECONDS / first), _FEWEST), _MOST))
    batches.close()
    return state, seconds / in_call
