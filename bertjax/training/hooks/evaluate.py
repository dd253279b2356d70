"""Evaluate held-out rows every few steps."""

import dataclasses
import math

from bertjax.training.evaluation import Evaluation, Evaluator
from bertjax.training.hooks.base import Hook, Run
from bertjax.training.optim.optimizer import averaged
from bertjax.training.setup import Setup, merged, setup_after


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
