"""Decide when the state is saved, and with which metadata; write the newest results while a run is in progress."""

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

from bertjax.runtime import storage
from bertjax.runtime.errors import Unavailable, UserError, json_text
from bertjax.training.evaluation import Evaluation
from bertjax.training.hooks.base import Hook, Run
from bertjax.training.results import curves
from bertjax.training.run.saving import Saving
from bertjax.training.run.watchdog import NotFinite
from bertjax.training.run.workdir import Workdir


class Save(Hook):
    """Saves every `runtime.save_every` steps, at the steps in `keep_at`, at a stop and at the end.

    With `keep_best`, also before each evaluation that may make a checkpoint the best.

    Args:
      saving: saves in the background.
    """

    def __init__(self, saving: Saving):
        self._saving = saving

    def on_ready(self, run: Run) -> None:
        if run.restored.is_new:
            self._saving.try_out(run.session.files.trial_checkpoint, run.state)
            if run.step in run.runtime.keep_at:
                self._save(run)

    def on_chunk(self, run: Run, first: int) -> None:
        self._saving.check()
        ranks = run.owes_evaluation and run.runtime.keep_best and run.may_be_best
        is_due = run.is_at_end or (run.is_due(run.runtime.save_every, first) and self._saving.may_save())
        if ranks or run.step in run.runtime.keep_at or is_due:
            run.take()
            self._save(run, is_last=run.is_at_end)

    def on_stop(self, run: Run) -> None:
        if jax.process_count() == 1:  # several processes learn together in `save_last` that a save has failed
            self._saving.check()
        if run.step > run.restored.step or run.restored.is_new:  # otherwise the restored checkpoint is this state
            run.take()
            self._save(run, is_last=True)
        run.saved = run.step

    def on_close(self, run: Run, error: BaseException | None) -> None:
        # After an error, complete a running save only if no other process is needed for it and this one still owns the
        # workdir.
        is_alone = jax.process_count() == 1 and isinstance(error, Exception) and not isinstance(error, Unavailable)
        if error is None or isinstance(error, NotFinite) or is_alone:
            self._saving.close()

    def _save(self, run: Run, is_last: bool = False) -> None:
        """Start saving the state. With `is_last`, wait for the save and keep its error for the end of the run."""
        meta: dict[str, Any] = {
            **run.start.meta,
            "evaluation_is_due": run.owes_evaluation,
            "skip_rows": run.runtime.skipped_before(run.step),
            "hooks": {},  # names of users, apart from ours and from those that `Checkpoints.save` adds
        }
        stored = meta["hooks"]
        for hook in run.hooks:
            own: dict[str, Any] = {}
            hook.on_save(run, own)
            if taken := sorted(stored.keys() & own.keys()):
                raise UserError(
                    f"{type(hook).__name__}.on_save gives {taken[0]!r}, which another hook gives; choose another name"
                )
            stored |= own
        run.session.verify_lock()
        if is_last:
            run.failure = self._saving.save_last(run.step, run.state, meta)
        else:
            self._saving.save(run.step, run.state, meta)


# Drawing takes half a second, which evaluations that follow each other share.
_SECONDS_UNTIL_DRAWN = 30.0


class NewestResults(Hook):
    """Intermediate results: `LogWriter` writes the summary at each evaluation and the curves half a minute later.

    Args:
      workdir: the run's workdir.
      lines_to_draw: returns the lines of metrics so far.
    """

    every = 0.0

    def __init__(self, workdir: Workdir, lines_to_draw: Callable[[], list[dict[str, Any]]]):
        self._workdir, self.path, self._lines_to_draw = workdir, workdir.summary, lines_to_draw
        self._figures = self._written = {}
        self._due = math.inf
        self._writing = threading.Lock()
        self._ended = False

    def on_evaluation(self, run: Run, evaluation: Evaluation) -> None:
        self.add(run.figures(evaluation))

    def on_close(self, run: Run, error: BaseException | None) -> None:
        if error is None and run.has_finished:
            with run.session.watchdog.state("exporting"):
                self.end()

    def add(self, figures: dict[str, Any]) -> None:
        """Queue an evaluation's figures, as in a finished run's summary, without waiting for a slow write."""
        self._figures = figures
        # Keep an earlier date: frequent evaluations must not postpone the drawing forever.
        self._due = min(self._due, time.monotonic() + _SECONDS_UNTIL_DRAWN)

    def write(self) -> None:
        """Write new figures, if any, and the curves if they are due.

        Raises:
          StorageError: the summary cannot be written; the next call writes it.
        """
        with self._writing:
            if self._ended:
                return
            if (figures := self._figures) is not self._written:
                storage.write_text(self.path, json_text({"finished": False, **figures}, indent=2) + "\n")
                self._written = figures  # only now: after an error, the next call writes them
            if time.monotonic() >= self._due:
                self._due = math.inf
                curves.draw(self._lines_to_draw(), self._workdir.curves, "")

    def end(self) -> None:
        """Stop writing, because the final results follow."""
        with self._writing:
            self._ended = True
