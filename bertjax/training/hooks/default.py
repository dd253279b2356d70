"""Evaluation, and the hooks of every run in the order in which they are called, `runtime.hooks` included."""

import dataclasses
import math
from collections.abc import Sequence

from bertjax.config.registry import Union
from bertjax.runtime.errors import UserError, reason
from bertjax.training.evaluation import Evaluation, Evaluator
from bertjax.training.hooks.base import Hook, Run
from bertjax.training.hooks.log import Finite, Log, ProgressBar, Trace
from bertjax.training.hooks.save import NewestResults, Save
from bertjax.training.hooks.spikes import Spikes
from bertjax.training.optim.ema import averaged
from bertjax.training.restore import Restored
from bertjax.training.run.metrics import MetricsLog
from bertjax.training.run.saving import Saving
from bertjax.training.setup import Setup, merged, setup_after
from bertjax.training.start import Start


class Evaluate(Hook):
    """Evaluates every `eval.every` steps and at the end, and records the scores that rank checkpoints."""

    def __init__(self):
        self._evaluators: dict[Setup, Evaluator] = {}  # stages may have other encoders

    def on_ready(self, run: Run) -> None:
        if run.owes_evaluation:
            self._run(run)
        elif run.is_at_end:  # all steps were done, and evaluated, before this start
            run.evaluation = self._evaluate(run)

    def on_chunk(self, run: Run, first: int) -> None:
        if run.owes_evaluation:
            run.take()
            self._run(run)

    def _run(self, run: Run) -> None:
        run.evaluation = self._evaluate(run)
        run.call_hooks("on_evaluation", run.evaluation)
        # A score marks an evaluation as done, so its line of metrics must be on disk first.
        run.log.flush()
        score = run.evaluation.rank if math.isfinite(run.evaluation.rank) and run.may_be_best else None
        run.log.append("evaluations", run.step, score=score, **run.config.eval.question)  # lower is better
        run.restored.checkpoints.scores[run.step] = score
        run.owes_evaluation = False

    def _evaluate(self, run: Run) -> Evaluation:
        """Evaluate the state after `run.step` steps.

        Raises:
          Stopping: the run is asked to stop. Nothing is recorded, since the mean over some rows is not the metric.
        """
        setup = setup_after(run.setups, run.step)

        def between_batches() -> None:
            run.session.watchdog.beat()
            # A preemption gives as little as 30 s, and an evaluation may take minutes. All processes ask at every
            # batch, so they stop at the same one.
            run.check_stop()

        if setup not in self._evaluators:
            self._evaluators[setup] = Evaluator(setup, run.feeds, run.start.frozen[setup], between_batches)
        evaluate = self._evaluators[setup]
        with run.log.spending("evaluation"), run.session.watchdog.state("evaluating"):
            evaluation = evaluate(merged(setup, run.state))
            if not (decay := run.config.optimizer.ema_decay):
                return evaluation
            return dataclasses.replace(evaluation, ema=evaluate(merged(setup, averaged(decay, run.state))))


HOOKS = Union("runtime.hooks", Hook, "", {})


def default_hooks(start: Start, restored: Restored, log: MetricsLog, profile: range | None) -> list[Hook]:
    """Return the default hooks in call order, and add their log files to the writer. Hooks of users come after them.

    Args:
      start: the checked start.
      restored: the state that it begins with.
      log: logs and totals.
      profile: steps to trace, counted from 0; None for none.
    """
    runtime, session = start.config.runtime, start.session
    newest = NewestResults(session.files, lambda: log.lines_to_draw)
    session.writer.add(newest)
    saving = Saving(restored.checkpoints, runtime.save_seconds, log, session.watchdog)
    return [
        Log(restored),
        Finite(),  # after the log: the line of the step before is written
        Spikes(restored),
        ProgressBar(),
        Trace(profile, session.files.profile),
        Save(saving),  # before the evaluation: a preemption during it must not lose these steps
        Evaluate(),
        newest,
    ]


def user_hooks(kinds: Sequence[str]) -> list[Hook]:
    """Make the hooks that a configuration names as `module:Class`, in order.

    Raises:
      UserError: a hook cannot be imported or made.
    """
    return [_made(kind) for kind in kinds]


def _made(kind: str) -> Hook:
    choice, found = f"runtime.hooks={kind!r}", HOOKS.class_of(kind, trust_code=True)
    moments = [name for name in vars(Hook) if name.startswith("on_")]
    if unknown := [name for name in dir(found) if name.startswith("on_") and name not in moments]:
        raise UserError(f"{choice} defines {unknown[0]}(), which is never called; the moments are {', '.join(moments)}")
    try:
        return found()
    except TypeError as error:
        raise UserError(f"{choice} cannot be made without arguments ({reason(error)}); give them defaults") from error
