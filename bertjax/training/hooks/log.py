"""Count steps, write their lines of metrics, and end a run whose loss or gradient stays non-finite."""

import dataclasses
import logging
from typing import Any

from bertjax.config.config import to_dict
from bertjax.models.flops import Counts
from bertjax.training.evaluation import Evaluation
from bertjax.training.hooks.base import Hook, Run
from bertjax.training.parallel import processes
from bertjax.training.restore import Restored
from bertjax.training.run import goodput
from bertjax.training.run.failures import NotFinite
from bertjax.training.run.metrics import MetricsLog, Totals
from bertjax.training.run.tracking import Tracking
from bertjax.training.start import Start


class Log(Hook):
    """Writes a line of metrics every `runtime.log_every` steps, and one for every evaluated step.

    The newest step's line waits until the next step arrives or a checkpoint is saved, as an evaluation may join it.

    Args:
      restored: metrics since the last line, if the run resumes.
    """

    def __init__(self, restored: Restored):
        # Newest metrics of each task trained since the last line.
        is_due, is_owed = restored.meta.get("evaluation_is_due", False), restored.owes_evaluation
        has_line = is_due and not is_owed  # the evaluation after the save has written this line
        self._recent: dict[str, float] = {} if has_line else dict(restored.of_hooks.get("recent", {}))
        self._waiting: tuple[int, dict[str, float]] | None = (restored.step, dict(self._recent)) if is_owed else None

    def on_step(self, run: Run, step: int, metrics: dict[str, float]) -> None:
        self._write(run)
        counts = Counts(**{name: metrics[name] for name in Counts._fields})
        run.log.count(metrics, run.flops_at(step - 1).useful(counts))
        self._recent |= metrics
        self._waiting = (step, dict(self._recent))

    def on_evaluation(self, run: Run, evaluation: Evaluation) -> None:
        metrics = _named("eval", evaluation) | (_named("eval_ema", evaluation.ema) if evaluation.ema else {})
        self._write(run, metrics)
        run.log.append("samples", run.step, samples=[dataclasses.asdict(sample) for sample in evaluation.samples])

    def on_save(self, run: Run, meta: dict[str, Any]) -> None:
        if not run.owes_evaluation:  # an evaluated step has one line, which also holds the evaluation
            self._write(run)
        run.log.flush()
        meta |= {"totals": dataclasses.asdict(run.log.totals), "recent": self._recent}

    def on_close(self, run: Run, error: BaseException | None) -> None:
        run.log.close()

    def _write(self, run: Run, evaluation: dict[str, float] | None = None) -> None:
        if self._waiting:
            step, metrics = self._waiting
            if evaluation or step % run.runtime.log_every == 0 or step == run.timetable.steps:
                run.log.write(step, metrics, evaluation)
                self._recent = {}
            self._waiting = None


def _named(prefix: str, evaluation: Evaluation) -> dict[str, float]:
    sets = evaluation.by_set.items()
    return {f"{prefix}/{name}/{key}": value for name, part in sets for key, value in part.metrics.items()}


def open_log(start: Start, restored: Restored) -> MetricsLog:
    """Open the logs and trackers of a run in the writer, and its totals in every process.

    Raises:
      UserError: a log file is damaged.
    """
    session, config = start.session, start.program.config
    names = config.runtime.trackers if processes.is_writer() else ()
    trackers = [session.closing.enter_context(Tracking(name, session.files, to_dict(config))) for name in names]
    totals = Totals(**restored.of_hooks["totals"]) if restored.meta else Totals()
    if restored.is_new:
        totals = totals.for_branch

    def speed(before: Totals, now: Totals, steps: int) -> dict[str, float]:
        return goodput.speed(before, now, steps, session.elapsed.seconds, start.program.mesh)

    # A damaged file of the writer is an error in every process.
    return processes.together(
        MetricsLog,
        *(session.files, totals, restored.step, session.writer, trackers, speed, restored.owes_evaluation),
    )


log = logging.getLogger(__name__)


class Finite(Hook):
    """Warns of skipped steps, and raises NotFinite after more than `runtime.max_skipped` in a row."""

    def on_step(self, run: Run, step: int, metrics: dict[str, float]) -> None:
        if metrics["skipped"] > run.runtime.max_skipped:
            losses = ", ".join(f"{name}={value}" for name, value in metrics.items() if name.endswith("_loss"))
            raise NotFinite(
                f"loss, gradient or update is not finite at step {step} ({losses}, "
                f"gradient_norm={metrics['gradient_norm']}); "
                "nothing was saved after it; raise runtime.max_skipped, or lower optimizer.learning_rate in a new "
                "workdir"
            )
        if metrics["skipped"] and processes.is_writer():
            log.warning("step %d was skipped: its loss, gradient or update is not finite", step)
