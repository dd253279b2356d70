"""Save the state of a run: when to start a save, when to wait for it, and how to handle a failed one."""

import contextlib
import logging
import time
from collections.abc import Iterator

import jax
from etils import epath

from bertjax.runtime.errors import UserError
from bertjax.training.parallel import processes
from bertjax.training.run.checkpoint import Checkpoints, NotSaved
from bertjax.training.run.checkpoint_errors import why_not_written
from bertjax.training.run.metrics import MetricsLog
from bertjax.training.run.watchdog import Watchdog
from bertjax.training.state import State

log = logging.getLogger(__name__)


class Saving:
    """Saves the state of a run in the background.

    A single failed save is logged, and the run continues with its older checkpoints. A second one in a row ends the
    run. With several processes the first one does, because a process that cannot write keeps the others waiting.

    Args:
      checkpoints: checkpoints of the run.
      save_seconds: minimum number of seconds between saves.
      metrics_log: counts the time that saves take.
      watchdog: limits each wait.
    """

    def __init__(self, checkpoints: Checkpoints, save_seconds: int, metrics_log: MetricsLog, watchdog: Watchdog):
        self._checkpoints, self._seconds = checkpoints, save_seconds
        self._started = time.monotonic()  # time of the newest save, or of the start
        self._log, self._watchdog = metrics_log, watchdog
        self._newest: int | None = None  # step of the newest save that was started
        self._is_settled = True
        self._failed_in_a_row = 0

    def try_out(self, folder: epath.Path, state: State) -> None:
        """Save the state to a separate folder and delete it, so that an unusable workdir fails before training.

        The trial needs the same memory, disk space and permissions as a real save. A smaller trial could miss a lack of
        them.

        Raises:
          NotSaved: the state cannot be saved.
        """

        def remove() -> None:
            processes.on_writer(lambda: folder.rmtree() if folder.exists() else None)

        remove()  # a killed start may have left one
        trial = Checkpoints(folder)
        try:
            with self._watched():
                trial.save(0, state, {})
                trial.close()
        except NotSaved as error:
            if jax.process_count() == 1:
                with contextlib.suppress(OSError, UserError):
                    remove()
            raise NotSaved(
                f"workdir {folder.parent} cannot hold a checkpoint ({why_not_written(error.__cause__ or error)}); free "
                "disk space or memory, choose another --workdir, or report this line if the cause is neither"
            ) from error
        remove()

    def may_save(self) -> bool:
        """Return whether enough time has passed since the last save; all processes use the clock of process 0."""
        if not self._seconds:
            return True
        return processes.from_writer(lambda: time.monotonic() - self._started >= self._seconds, "save_seconds")

    def save(self, step: int, state: State, meta: dict) -> None:
        """Start saving the state after `step` steps, once the previous save is complete.

        Raises:
          NotSaved: a second save in a row has failed, or the first one with several processes.
        """
        self.settle()
        self._started = time.monotonic()
        with self._tolerated(), self._watched():
            self._checkpoints.save(step, state, meta)
            self._newest, self._is_settled = step, False

    def check(self) -> None:
        """Report a save that failed in the background, without waiting for one that is still running.

        Raises:
          NotSaved: as for `save`.
        """
        if not self._is_settled and not self._checkpoints.is_saving:
            self.settle()

    def settle(self) -> None:
        """Wait for the last save.

        Raises:
          NotSaved: as for `save`.
        """
        if not self._is_settled:
            self._is_settled = True
            with self._tolerated(), self._watched():
                self._checkpoints.settle()
                self._failed_in_a_row = 0
                self._watchdog.notify("saved", self._newest)

    def save_last(self, step: int, state: State, meta: dict) -> NotSaved | None:
        """Save the state and wait. All processes return the same error, or None if the state is saved."""
        failure, is_started, was_settled = None, self._newest == step, self._is_settled
        if not is_started:
            with contextlib.suppress(NotSaved):  # a failure of the previous save: this one supersedes it
                self.settle()
        self._is_settled = True
        try:
            with self._watched():
                if not is_started:
                    self._checkpoints.save(step, state, meta)
                self._checkpoints.settle()
        except NotSaved as error:
            failure = str(error)
        # A process that raises alone would leave the others waiting in their next collective.
        if failures := [message for message in processes.gather(failure, "last-save") if message]:
            return NotSaved(failures[0])
        self._newest = step
        if not (is_started and was_settled):  # else `settle` has
            self._watchdog.notify("saved", step)
        return None

    def close(self) -> None:
        """Let a running save finish, even if the run has failed, and end the writing threads."""
        try:
            with self._watched():
                self._checkpoints.close()
        except NotSaved as error:  # only a warning: the run already has its export, or ends with its own error
            log.warning("%s", error)

    @contextlib.contextmanager
    def _tolerated(self) -> Iterator[None]:
        try:
            yield
        except NotSaved as error:
            self._failed_in_a_row += 1
            self._newest = None
            if jax.process_count() > 1:
                raise
            if self._failed_in_a_row > 1:
                raise NotSaved(f"two saves in a row have failed, now: {error}") from error
            log.warning("%s; the run continues, free disk space", error)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        with self._log.spending("checkpoint"), self._watchdog.state("saving"):
            yield
