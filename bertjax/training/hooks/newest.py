"""Write `summary.json` and `curves.png` while a run is in progress, as of its newest evaluation."""

import math
import threading
import time
from typing import Any

from bertjax.runtime import storage
from bertjax.runtime.errors import json_text
from bertjax.training.evaluation import Evaluation
from bertjax.training.hooks.base import Hook, Run
from bertjax.training.results import curves
from bertjax.training.run.workdir import Workdir

# Drawing takes half a second. After this delay, `metrics.jsonl` has the evaluation's lines, even on an object store.
_SECONDS_UNTIL_DRAWN = 30.0


class NewestResults(Hook):
    """Intermediate results: `LogWriter` writes the summary at each evaluation and the curves half a minute later.

    Args:
      workdir: the run's workdir; its metrics log is an earlier sink in the same writer.
    """

    def __init__(self, workdir: Workdir):
        self._workdir, self.path = workdir, workdir.summary
        self._figures: dict[str, Any] = {}
        self._due = math.inf
        # Two locks: `add` in the training thread must not wait for a slow write.
        self._taking, self._writing = threading.Lock(), threading.Lock()
        self._ended = False

    def on_evaluation(self, run: Run, evaluation: Evaluation) -> None:
        self.add(run.figures(evaluation))

    def on_close(self, run: Run, error: BaseException | None) -> None:
        if error is None and run.has_finished:
            with run.session.watchdog.state("exporting"):
                self.end()

    def add(self, figures: dict[str, Any]) -> None:
        """Queue an evaluation's figures, as in a finished run's summary."""
        with self._taking:
            self._figures = figures
            # Keep an earlier date: frequent evaluations must not postpone the drawing forever.
            self._due = min(self._due, time.monotonic() + _SECONDS_UNTIL_DRAWN)

    def write(self, everything: bool) -> None:
        """Write new figures, if any, and the curves if they are due.

        Raises:
          StorageError: the summary cannot be written; the next call writes it.
        """
        with self._writing:
            if self._ended:
                return
            with self._taking:
                figures, self._figures = self._figures, {}
                is_due = time.monotonic() >= self._due
                self._due = math.inf if is_due else self._due
            if figures:
                try:
                    storage.write_text(self.path, json_text({"finished": False, **figures}, indent=2) + "\n")
                except BaseException:
                    with self._taking:
                        # Put them back for the next call, unless newer ones have arrived.
                        self._figures = self._figures or figures
                    raise
            if is_due:
                curves.draw(self._workdir.metrics, self._workdir.curves, "")

    def end(self) -> None:
        """Stop writing, because the final results follow."""
        with self._writing:
            self._ended = True
