"""`bertjax train --minutes=N`: how many steps fit into N minutes on these devices, measured once per run.

A learning rate schedule needs a number of steps before the first one, and a resumed run must keep that number. So the
first start compiles the step of the recipe, times a few real steps, and replaces the recipe's number of steps. The run
then compiles again, because the schedule is a part of the compiled step.
"""

import argparse
import dataclasses
import math
import re
import time
from collections.abc import Sequence
from typing import Any, cast

import jax

from bertjax.config.config import Config
from bertjax.data.pipeline import LocalBatches, iterate
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError
from bertjax.training.parallel import processes
from bertjax.training.parallel.sharding import batch_shards, put_batches
from bertjax.training.results import folds
from bertjax.training.run.workdir import read_json, write_json
from bertjax.training.session import Session
from bertjax.training.start import Start, check_start

# Time steps for this many seconds, within these limits on their number.
_SECONDS, _FEWEST, _MOST = 5.0, 2, 50
# A backward pass costs about two forward passes (Kaplan et al., 2020, arXiv 2001.08361, section 2.1), so a row costs a
# third of its training in an evaluation, which has the forward pass alone.
_EVALUATION_SHARE = 1 / 3
# Schedule settings that count steps; they keep their share of the run, as the warm-up does.
_SCHEDULE_STEPS = ("decay_steps", "end_step")
# A run that is shorter than an interval of its recipe has at most this many evaluations and checkpoints before its end.
_MOST_BETWEEN = 9


@dataclasses.dataclass(frozen=True)
class Speed:
    """Measured speed of a run.

    Attributes:
      step: seconds per step.
      evaluation: seconds per evaluation.
      every: steps between evaluations.
    """

    step: float
    evaluation: float
    every: int

    def steps_in(self, seconds: float, recipe_steps: int) -> int:
        """Return the steps that fit, with the evaluations between them, as two significant digits."""
        # A run that ends before `every` has as many evaluations as the recipe, see `interval`. Half of the time is left
        # for steps whatever they take, so a short run with slow evaluations is longer than planned.
        between = min((recipe_steps - 1) // self.every, _MOST_BETWEEN) * self.evaluation
        short = max(seconds - between, seconds / 2) / self.step
        long = seconds / (self.step + self.evaluation / self.every)
        steps = long if long > self.every else min(short, self.every)
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


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Add --minutes."""
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help="train for about N minutes here in place of the recipe's steps: the first start measures the time of a "
        "step, and sets steps, warm-up and decay",
    )


def check_flags(args: argparse.Namespace, overrides: Sequence[str], config: Config) -> None:
    """Raise UserError if --minutes is set and something else decides how long the run is, or there are several runs."""
    if args.minutes is None:
        return
    flag = f"--minutes={args.minutes:g}"
    if not 0 < args.minutes < math.inf:
        raise UserError(f"{flag} must be above 0")
    if own := [each for each in overrides if re.match(r"stages(\.0\.(steps|epochs|flops|min_steps))?=", each)]:
        raise UserError(f"{flag} and --config.{own[0]} both set the steps; leave one out")
    others = {"--seeds": args.seeds, "--sweep": args.sweep, "--longer": args.longer, "init_state": config.init_state}
    others["examples.folds"] = folds.are_open(config)
    if named := [name for name, value in others.items() if value]:
        raise UserError(
            f"{flag} cannot be combined with {named[0]}: runs that are compared or continued need a number of steps; "
            "set stages.0.steps"
        )
    if len(config.stages) > 1:
        raise UserError(
            f"{flag} sets the steps of one stage, and this run has {len(config.stages)}, each with its own length; "
            "choose a variant with one stage, such as laptop, if the recipe has one, or set the steps of each stage"
        )


def with_steps(session: Session, config: Config, minutes: float) -> Config:
    """Return a configuration whose steps take about `minutes`, as measured at the first start of the run.

    Compilation, the final evaluation and the export come on top. Warm-up and decay keep their share of the steps.

    Args:
      session: the open workdir; `minutes.json` in it keeps the measurement.
      config: the configuration as the user wrote it.
      minutes: wall-clock minutes to train.

    Raises:
      UserError: the run was started with other minutes or without, or the time is too short for two steps.
    """
    path = session.files.minutes
    if session.before is None:
        # A start that was refused or killed before its first record may have left a file, which is replaced.
        measured = _measure(check_start(session, config, longer=False), minutes)
        processes.on_writer(lambda: write_json(path, measured), "write-minutes")
    else:
        measured = processes.from_writer(lambda: _read(session, minutes), "read-minutes")
        print(f"minutes: {measured['steps']:,} steps, as measured at the first start", flush=True)
    return _with(config, measured)


def _read(session: Session, minutes: float) -> dict[str, Any]:
    path = session.files.minutes
    if not storage.exists(path):
        raise UserError(
            f"workdir {session.files.root} holds a run that was started without --minutes; leave --minutes={minutes:g} "
            "out, or use another --workdir"
        )
    measured = read_json(path, "minutes", "steps", "recipe_steps", "recipe_warmup_steps")
    if measured["minutes"] != minutes:
        raise UserError(
            f"workdir {session.files.root} holds a run of --minutes={measured['minutes']:g}, which are "
            f"{measured['steps']:,} steps, not --minutes={minutes:g}; use the old value, or another --workdir"
        )
    return measured


def _measure(start: Start, minutes: float) -> dict[str, Any]:
    """Time the steps of a checked start, print the result, and return the content of `minutes.json`."""
    config = start.program.config
    with start.session.watchdog.state("compiling"):
        own = _seconds_per_step(start)
    measured = processes.from_writer(lambda: own, "seconds-per-step")
    rows = sum(min(config.eval.rows or math.inf, feed.plans[0].counts.rows) for feed in start.feeds.heldout.values())
    stage = config.stages[0]  # resolved: it has steps and rows
    evaluation = rows / cast(int, stage.batch) * measured * _EVALUATION_SHARE
    speed = Speed(measured, evaluation, config.eval.every)
    steps = speed.steps_in(60 * minutes, cast(int, stage.steps))
    if steps < 2:
        raise UserError(
            f"--minutes={minutes:g} is less than two steps of {measured:.3g} s; allow more, or lower stages.0.batch"
        )
    between = (steps - 1) // interval(speed.every, steps, cast(int, stage.steps))
    print(
        f"minutes: {steps:,} steps of {measured:.3g} s take about {minutes:g} minutes on these devices"
        + (f", with {between:,} evaluations of {evaluation:.3g} s" if between else "")
        + "; compilation, the last evaluation and the export come on top",
        flush=True,
    )
    recipe = {"recipe_steps": stage.steps, "recipe_warmup_steps": config.optimizer.warmup_steps}
    recipe |= {"recipe_eval_every": config.eval.every, "recipe_save_every": config.runtime.save_every}
    return {"minutes": minutes, "steps": steps, **recipe, "speed": vars(speed)}


def _with(config: Config, measured: dict[str, Any]) -> Config:
    """Return a configuration with measured steps, and with warm-up, decay and long intervals of the same share."""
    steps, of = measured["steps"], measured["recipe_steps"]
    stage = dataclasses.replace(config.stages[0], steps=steps, epochs=0.0, flops=0.0, min_steps=0)
    optimizer = config.optimizer
    if not optimizer.warmup_share:
        # Rounded down, as the decay below: together they must not be longer than the run.
        warmup = steps * measured["recipe_warmup_steps"] // of
        optimizer = dataclasses.replace(optimizer, warmup_steps=warmup, warmup_tokens=0.0)
    lengths = {
        name: max(1, steps * length // of)
        for name in _SCHEDULE_STEPS
        if (length := getattr(optimizer.schedule, name, 0))
    }
    optimizer = dataclasses.replace(optimizer, schedule=dataclasses.replace(optimizer.schedule, **lengths))
    # The intervals are not a part of the result, so those of this start count, which may differ from the first one's.
    # 0 is once per epoch, which only the measurement has resolved.
    each = config.eval.every or measured.get("recipe_eval_every", 0)
    evaluations = dataclasses.replace(config.eval, every=interval(each, steps, of))
    saves = dataclasses.replace(config.runtime, save_every=interval(config.runtime.save_every, steps, of))
    return dataclasses.replace(config, stages=(stage,), optimizer=optimizer, eval=evaluations, runtime=saves)


def _seconds_per_step(start: Start) -> float:
    """Return the mean seconds of a step, over the tasks that take turns."""
    tasks = start.program.config.stages[0].among(start.program.config.tasks)
    weights = {name: start.program.config.tasks[name].weight or 0.0 for name in tasks}
    state, total = start.create_state(), 0.0
    for name, weight in weights.items():
        state, seconds = _time_task(start, name, state)
        total += weight * seconds
    return total / sum(weights.values())


def _time_task(start: Start, name: str, state: Any) -> tuple[Any, float]:
    """Train with real batches of one task, and return the state and the seconds per step without compilation."""
    program, (stage,) = start.program, start.program.config.stages
    runtime, task = program.config.runtime, program.tasks[name]
    # Rows are endless, but the timetable ends with the run, which may be shorter than this measurement.
    endless = dataclasses.replace(stage, steps=2**30)
    timetable = dataclasses.replace(program.timetable, stages=(endless,), weights={name: 1.0})
    make = LocalBatches(timetable.at, start.feeds.train, *batch_shards(program.mesh))
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
