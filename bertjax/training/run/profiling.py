"""Traces of single steps for xprof."""

import logging

import jax
from etils import epath

from bertjax.errors import UserError

log = logging.getLogger(__name__)


class Trace:
    """Writes an xprof trace of some steps.

    Args:
      steps: those from the first to before the last, counted from 0; None for no trace.
      folder: where TensorBoard finds it.
    """

    def __init__(self, steps: range | None, folder: epath.Path):
        self._steps, self._folder = steps, folder
        self._runs = False

    def edge(self, first: int, end: int, state: dict) -> None:
        """Called before the chunk of the steps from `first` to before `end`; begins or ends the trace where it is time.

        A chunk that holds one of the steps is traced whole.
        """
        if self._runs and first >= self._steps.stop:
            self.end(state)
        elif self._steps and not self._runs and first < self._steps.stop and end > self._steps.start:
            jax.block_until_ready(state)
            jax.profiler.start_trace(str(self._folder))
            self._runs = True

    def end(self, state: dict) -> None:
        """Ends a trace that runs; says so where none was written."""
        if self._runs:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            log.info("trace written to %s", self._folder)
        elif self._steps:
            log.warning(
                "no trace was written: none of the steps %d:%d was trained", self._steps.start, self._steps.stop
            )
        self._runs, self._steps = False, None


def parse_steps(text: str) -> range:
    """`100:105` as range(100, 105).

    Raises:
      UserError: it is no such thing.
    """
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise UserError(f"--profile={text!r} must be FIRST:LAST, as in --profile=100:105")
    return range(int(first), int(last))
