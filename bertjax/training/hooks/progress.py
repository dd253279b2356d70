"""The progress bar for training steps."""

import sys
from typing import Any

from tqdm import tqdm

from bertjax.training.evaluation import Evaluation
from bertjax.training.hooks.base import Hook, Run
from bertjax.training.parallel import processes
from bertjax.training.results.report import show_samples


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
        if step <= self._compiled:
            restart_clock(self._bar, step)
        self._bar.update(step - self._bar.n)
        show_metrics(self._bar, metrics)

    def on_chunk(self, run: Run, first: int) -> None:
        if run.owes_evaluation:
            self._bar.set_postfix_str("evaluating")

    def on_evaluation(self, run: Run, evaluation: Evaluation) -> None:
        self._bar.write(show_samples(run.step, evaluation))

    def on_close(self, run: Run, error: BaseException | None) -> None:
        if self._bar is not None:  # the start may have ended before
            self._bar.close()


def restart_clock(bar: tqdm, step: int) -> None:
    """Set a bar to a step that does not count for its speed."""
    bar.initial = bar.n = bar.last_print_n = step
    bar.unpause()
    bar.refresh()


def show_metrics(bar: tqdm, metrics: dict[str, float]) -> None:
    """Show tokens per second, losses and accuracies after the bar, most important first: a terminal may cut the end."""
    # Steps per second, smoothed by tqdm; None at first.
    rate = bar.format_dict["rate"]
    parts = [f"{metrics['tokens'] * rate:,.0f} tokens/s"] if rate else []
    parts += [f"{name}={value:.3f}" for name, value in metrics.items() if name.endswith(("_loss", "_accuracy"))]
    bar.set_postfix_str(" ".join(parts), refresh=False)
