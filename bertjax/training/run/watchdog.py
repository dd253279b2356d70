"""A thread that ends a run that hangs: its launcher then starts it again. It also notices steps that are late."""

import collections
import contextlib
import faulthandler
import logging
import math
import os
import statistics
import threading
import time
from collections.abc import Iterator

from bertjax.training.run.heartbeat import Heartbeat
from bertjax.training.run.notify import Notifier

TRAINING = "training"

# A step is repeated thousands of times. Everything else happens once, or may wait for a slower process.
_PATIENCE = 3.0
# A step that takes milliseconds may be late by seconds without being stuck.
_LEAST_SECONDS = 30.0
_FACTOR = 20.0
_KNOWN_STEPS = 5
_STDERR = 2

log = logging.getLogger(__name__)


class Watchdog:
    """Knows what a run is doing, and ends the process when that makes no progress.

    The state `training` makes progress with each dispatch of steps, which may take `hang_timeout` seconds: the metrics
    of all steps of a dispatch arrive together. Its heartbeat has the time of the newest one. Every other state may
    take three times as long, and so may the first step after it, because another process may still be in that state.
    The end is a line on stderr, the stacks of all threads, and exit code 1. A timer of `faulthandler`, which is not a
    Python thread, does the same ten ticks later if the interpreter itself is blocked, as by a page fault in a file that
    is mapped from a server that has stopped answering.

    A dispatch that takes 20 times as long as the median one is only logged, with the stacks.

    Args:
      hang_timeout: seconds; 0 never ends the process.
      heartbeat: gets every second what the run is doing, and in the state `training` each dispatch.
      notify: is told of a step that is late, and of the end; by others, of what else happens.
      least: seconds after which a step is late at the earliest.
    """

    def __init__(
        self,
        hang_timeout: float,
        heartbeat: Heartbeat | None = None,
        notify: Notifier | None = None,
        least: float = _LEAST_SECONDS,
    ):
        self._hang_timeout = hang_timeout or math.inf
        self.heartbeat, self.notify = heartbeat, notify or Notifier("", "")
        self._least = least
        self._tick = min(1.0, least / 10, self._hang_timeout / 10)
        self._durations: collections.deque[float] = collections.deque(maxlen=101)
        self._step = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._enter("starting", is_watched=True)

    def __enter__(self) -> "Watchdog":
        self._enter(self._name, is_watched=True)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def state(self, name: str, is_watched: bool = True) -> Iterator[None]:
        """Be in another state in this context; `is_watched=False` if nobody knows how long it takes."""
        before = self._name
        self._enter(name, is_watched)
        try:
            yield
        finally:
            self._enter(before, is_watched=True)

    def end(self, name: str, exit_code: int, failure: str = "") -> None:
        """Enter a last state, which the heartbeat reports at once: `finished`, `stopped`, or `failed` and why."""
        self._enter(name, is_watched=True)
        if self.heartbeat:
            self.heartbeat.end(exit_code, failure)
        self._report(name)

    def locate(self, step: int, steps: int) -> None:
        """Set the number of steps that are done, and of all steps."""
        self._step = step
        if self.heartbeat:
            self.heartbeat.steps = steps

    def beat(self, step: int | None = None) -> None:
        """Note progress: a batch of an evaluation, or the dispatch after which `step` steps are done."""
        now = time.monotonic()
        if step is None:
            self._current = (self._name, now, self._limit)
            return
        self._step = step
        self._durations.append(now - self._since)
        self._current = (self._name, now, self._hang_timeout)

    def _report(self, name: str) -> None:
        if self.heartbeat:
            self.heartbeat.beat(self._step, name)

    # One tuple, so that the thread never sees the name of one state and the limit of another.
    @property
    def _name(self) -> str:
        return self._current[0]

    @property
    def _since(self) -> float:
        return self._current[1]

    @property
    def _limit(self) -> float:
        return self._current[2]

    def _enter(self, name: str, is_watched: bool) -> None:
        self._current = (name, time.monotonic(), _PATIENCE * self._hang_timeout if is_watched else math.inf)

    def _watch(self) -> None:
        late = reported = None
        while not self._ended.wait(self._tick):
            name, since, limit = self._current
            waited = time.monotonic() - since
            if waited > limit:
                self._end_process(name, waited)
            if name != TRAINING or since != reported:  # the heartbeat of a step that hangs grows old
                self._report(name)
                reported = since
            if math.isfinite(limit):
                faulthandler.dump_traceback_later(limit - waited + 10 * self._tick, exit=True, file=_STDERR)
            else:
                faulthandler.cancel_dump_traceback_later()
            if name == TRAINING and since != late and self._is_late(waited):
                late = since
                faulthandler.dump_traceback(_STDERR)

    def _is_late(self, waited: float) -> bool:
        if len(self._durations) < _KNOWN_STEPS:
            return False
        median = statistics.median(list(self._durations))
        if waited <= max(_FACTOR * median, self._least):
            return False
        log.warning("a step has taken %.0f s so far, the median is %.3f s; all stacks follow", waited, median)
        self.notify("stalled", self._step, seconds=round(waited, 1))
        return True

    def _end_process(self, name: str, waited: float) -> None:
        """Neither print nor log: the thread that hangs may hold their locks."""
        line = (
            f"error: no progress for {waited:.0f} s in the state {name!r} at step {self._step}; run the same command "
            "again to resume, or raise runtime.hang_timeout if this takes so long here; the stacks of all threads:\n"
        )
        os.write(_STDERR, line.encode())
        faulthandler.dump_traceback(_STDERR)
        self.notify("failed", self._step, message=line.partition(";")[0])
        self.notify.flush()
        os._exit(1)
