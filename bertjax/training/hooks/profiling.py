"""xprof traces of selected steps."""

import logging
from collections.abc import Callable
from typing import cast

import jax
from etils import epath

from bertjax.runtime.errors import UserError, reason
from bertjax.training.hooks.base import Hook, Run

log = logging.getLogger(__name__)


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
