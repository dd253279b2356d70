"""Hooks that show a run: metrics, progress, xprof traces; and one that ends it if its loss stays non-finite."""

import dataclasses
import logging
import sys
from collections.abc import Callable
from typing import Any, cast

import jax
from etils import epath
from tqdm import tqdm

from bertjax.config.config import to_dict
from bertjax.models.flops import Counts
from bertjax.runtime.errors import UserError, reason
from bertjax.training.evaluation import Evaluation
from bertjax.training.hooks.base import Hook, Run
from bertjax.training.parallel import processes
from bertjax.training.restore import Restored
from bertjax.training.results.report import show_samples
from bertjax.training.run.metrics import MetricsLog, Totals, speed_of
from bertjax.training.run.trackers import Tracking
from bertjax.training.run.watchdog import NotFinite
from bertjax.training.start import Start

log = logging.getLogger(__name__)


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
    session, config = start.session, start.config
    names = config.runtime.trackers if processes.is_writer() else ()
    trackers = [session.closing.enter_context(Tracking(name, session.files, to_dict(config))) for name in names]
    totals = Totals(**restored.of_hooks["totals"]) if restored.meta else Totals()
    if restored.is_new:
        totals = totals.for_branch

    def speed(before: Totals, now: Totals, steps: int) -> dict[str, float]:
        return speed_of(before, now, steps, session.elapsed.seconds, start.setup.layout.mesh)

    # A damaged file of the writer is an error in every process.
    return processes.together(
        MetricsLog, *(session.files, totals, restored.step, session.writer, trackers, speed, restored.owes_evaluation)
    )


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


class ProgressBar(Hook):
    """A bar over a run's steps; it redraws rarely if stderr is a file.

    The time left follows from the steps after the first dispatch of this start, which waits for the compiler.
    """

    def __init__(self):
        self._bar: Any = None  # a `tqdm` from the start on
        self._compiled = 0  # the step at which the first dispatch ends; its steps arrive together

    def on_start(self, run: Run) -> None:
        self._bar = tqdm(
            total=run.timetable.steps,
            initial=run.step,
            unit="step",
            dynamic_ncols=True,
            mininterval=0.5 if sys.stderr.isatty() else 15.0,
            smoothing=0.1,
            disable=not processes.is_writer(),
        )

    def on_dispatch(self, run: Run, first: int, end: int) -> None:
        if first == run.restored.step:
            self._bar.set_postfix_str("compiling the step")
            self._compiled = end

    def on_step(self, run: Run, step: int, metrics: dict[str, float]) -> None:
        bar = self._bar
        if step <= self._compiled:  # a step that does not count for the speed
            bar.initial = bar.n = bar.last_print_n = step
            bar.unpause()
            bar.refresh()
        bar.update(step - bar.n)
        rate = bar.format_dict["rate"]  # steps per second, smoothed by tqdm; None at first
        # The most important first: a terminal may cut the end.
        parts = [f"{metrics['tokens'] * rate:,.0f} tokens/s"] if rate else []
        parts += [f"{name}={value:.3f}" for name, value in metrics.items() if name.endswith(("_loss", "_accuracy"))]
        bar.set_postfix_str(" ".join(parts), refresh=False)

    def on_chunk(self, run: Run, first: int) -> None:
        if run.owes_evaluation:
            self._bar.set_postfix_str("evaluating")

    def on_evaluation(self, run: Run, evaluation: Evaluation) -> None:
        self._bar.write(show_samples(run.step, evaluation))

    def on_close(self, run: Run, error: BaseException | None) -> None:
        if self._bar is not None:  # the start may have ended before
            self._bar.close()


class Trace(Hook):
    """Writes an xprof trace of some steps. A trace that cannot be written is only a warning.

    Args:
      steps: steps to trace, counted from 0; None for no trace.
      folder: output folder, which TensorBoard opens.
    """

    def __init__(self, steps: range | None, folder: epath.Path):
        self._steps, self._folder = steps, folder
        self._is_running = False

    def on_dispatch(self, run: Run, first: int, end: int) -> None:
        # If a chunk contains any step to trace, the whole chunk is traced.
        # Dispatch is asynchronous: wait for earlier steps, or the trace would contain their end.
        if self._is_running and first >= cast(range, self._steps).stop:
            self._end(run)
        elif self._steps and not self._is_running and first < self._steps.stop and end > self._steps.start:
            jax.block_until_ready(run.state)
            self._is_running = self._succeeds(lambda: jax.profiler.start_trace(str(self._folder)))
            self._steps = self._steps if self._is_running else None

    def on_close(self, run: Run, error: BaseException | None) -> None:
        if error is None:
            self._end(run)

    def _end(self, run: Run) -> None:
        """End a running trace; log a warning if no trace was written."""
        if self._is_running:
            # Wait for the traced steps, which may only be dispatched yet.
            jax.block_until_ready(run.state)
            if self._succeeds(jax.profiler.stop_trace):
                log.info("trace written to %s", self._folder)
        elif self._steps:
            log.warning(
                "no trace was written: none of the steps %d:%d was trained", self._steps.start, self._steps.stop
            )
        self._is_running, self._steps = False, None

    def _succeeds(self, action: Callable[[], None]) -> bool:
        """Run a JAX profiler action, which may raise many kinds of errors, and return whether it succeeded."""
        try:
            action()
        except Exception as error:
            log.warning("no trace is written to %s: %s", self._folder, reason(error))
            return False
        return True


def parse_steps(text: str) -> range:
    """Parse `100:105` as range(100, 105).

    Raises:
      UserError: the text is not FIRST:LAST.
    """
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise UserError(f"--profile={text!r} must be FIRST:LAST, as in --profile=100:105")
    return range(int(first), int(last))
