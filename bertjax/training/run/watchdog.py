"""Signs of life: the heartbeat in the workdir, and a thread that ends a process whose steps hang."""

import collections
import contextlib
import faulthandler
import json
import logging
import math
import os
import statistics
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from etils import epath

from bertjax.runtime import command_line, storage
from bertjax.training.run.notify import Notifier

_SECONDS_BETWEEN_WRITES = 10.0


class Heartbeat:
    """A run's last sign of life, {`step`, `time`, `state`, `steps`, `started`}, and its end.

    `LogWriter` writes it every ten seconds. `time` is when the run last reported, not when the file was written: a
    hanging run stops reporting, but its writer thread still writes. Readers recognize a file from an earlier start by
    `started`.

    Args:
      path: JSON file.
      hang_timeout: seconds that a dispatch of steps may take.
    """

    def __init__(self, path: epath.Path, hang_timeout: float = 0.0):
        self.path, self._hang_timeout, self.steps = path, hang_timeout, 0
        self._started = self._time = time.time()
        self._step, self._state = 0, "starting"
        self._end: dict[str, int | str] = {}
        self._written_time, self._due = 0.0, -math.inf

    def beat(self, step: int | None = None, state: str | None = None) -> None:
        """Report a sign of life, with the steps done and the current state; None keeps the previous value.

        Args:
          state: see `RunStatus.state`.
        """
        if step is not None:
            self._step = step
        if state is not None:
            self._state = state
        self._time = time.time()

    def end(self, exit_code: int, failure: str = "") -> None:
        """Record this start's exit code and why it failed."""
        self._end = {"exit_code": exit_code} | ({"failure": failure} if failure else {})

    def write(self, everything: bool) -> None:
        """Write the file if the run has reported and ten seconds have passed; with `everything`, without the delay.

        Raises:
          StorageError: it cannot be written.
        """
        # The training thread may report while this one writes: take the time once, and compare with it next time.
        reported = self._time
        if reported == self._written_time or not (everything or time.monotonic() > self._due):
            return
        self._due = time.monotonic() + _SECONDS_BETWEEN_WRITES
        record = {"step": self._step, "time": reported, "state": self._state, "steps": self.steps}
        record |= {"started": self._started, "hang_timeout": self._hang_timeout, **self._end}
        storage.write_text(self.path, json.dumps(record) + "\n")
        self._written_time = reported


TRAINING = "training"

# Factor on `hang_timeout` outside of steps. Steps repeat thousands of times; everything else happens once, or may wait
# for a slower process.
_PATIENCE = 3.0
# A step that usually takes milliseconds may be seconds late without being stuck.
_LEAST_SECONDS = 30.0
_FACTOR = 20.0
_KNOWN_STEPS = 5
_STDERR = 2

log = logging.getLogger(__name__)


class _Activity(NamedTuple):
    """What a run does, since when, and the seconds after which it counts as hanging."""

    name: str
    since: float
    limit: float


class Watchdog:
    """Tracks a run's state and ends the process when it makes no progress.

    In the state `training`, a dispatch may take `hang_timeout` seconds. Progress is a completed dispatch, since metrics
    for all its steps arrive together, and the heartbeat has the time of the newest one. Any other state may take three
    times as long. So may the first step after it, because another process may still be in that state.

    To end the process, the watchdog prints a line and the stacks of all threads to stderr and exits with code 1. If the
    interpreter itself is blocked, for example by a page fault in a file mapped from a dead server, a `faulthandler`
    timer does the same ten ticks later. That timer is not a Python thread.

    A dispatch that takes 20 times as long as the median is only logged, with the stacks.

    Args:
      hang_timeout: seconds; 0 never ends the process.
      heartbeat: receives the state every second, and in the state `training` with each dispatch.
      notify: called when a step is late and when the process is ended. Other code uses it for other events.
      least: a step is never late before this many seconds.
    """

    def __init__(
        self,
        hang_timeout: float,
        heartbeat: Heartbeat | None = None,
        notify: Notifier | None = None,
        least: float = _LEAST_SECONDS,
    ):
        self._hang_timeout = hang_timeout or math.inf
        self.heartbeat = heartbeat or Heartbeat(epath.Path(os.devnull))
        self.notify = notify or Notifier("", "")
        self._least = least
        self._tick = min(1.0, least / 10, self._hang_timeout / 10)
        self._durations: collections.deque[float] = collections.deque(maxlen=101)
        self._step = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._enter("starting", is_watched=True)

    def __enter__(self) -> "Watchdog":
        self._enter(self._current.name, is_watched=True)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def state(self, name: str, is_watched: bool = True) -> Iterator[None]:
        """Enter another state for this context; `is_watched=False` for activities without a time limit."""
        before = self._current.name
        self._enter(name, is_watched)
        try:
            yield
        finally:
            self._enter(before, is_watched=True)

    def end(self, name: str, exit_code: int, failure: str = "") -> None:
        """Enter a final state, `finished`, `stopped` or `failed`, and report it in the heartbeat at once."""
        self._enter(name, is_watched=True)
        self.heartbeat.end(exit_code, failure)
        self.heartbeat.beat(self._step, name)

    def locate(self, step: int, steps: int) -> None:
        """Set the number of steps done and the number of all steps."""
        self._step = step
        self.heartbeat.steps = steps

    def beat(self, step: int | None = None) -> None:
        """Report progress: an evaluation batch, or the dispatch that completes `step` steps."""
        now = time.monotonic()
        if step is None:
            self._current = self._current._replace(since=now)
            return
        self._step = step
        self._durations.append(now - self._current.since)
        self._current = self._current._replace(since=now, limit=self._hang_timeout)

    def _enter(self, name: str, is_watched: bool) -> None:
        limit = _PATIENCE * self._hang_timeout if is_watched else math.inf
        # One tuple, so that the thread never sees the name of one state and the limit of another.
        self._current = _Activity(name, time.monotonic(), limit)

    def _watch(self) -> None:
        late = reported = None
        while not self._ended.wait(self._tick):
            name, since, limit = self._current
            waited = time.monotonic() - since
            if waited > limit:
                self._end_process(name, waited)
            if name != TRAINING or since != reported:  # while a step hangs, the heartbeat must grow old
                self.heartbeat.beat(self._step, name)
                reported = since
            # Restart the `faulthandler` timer in each tick: it only fires if this thread cannot run anymore.
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
        """End the process without `print` or logging: the hanging thread may hold their locks."""
        line = (
            f"error: no progress for {waited:.0f} s in the state {name!r} at step {self._step}; run the same command "
            "again to resume, or raise runtime.hang_timeout if this takes so long here; the stacks of all threads:\n"
        )
        command_line.write_error(line.encode())
        faulthandler.dump_traceback(_STDERR)
        self.notify("failed", self._step, message=line.partition(";")[0])
        self.notify.flush()
        # Not `sys.exit`: it would end this thread only, and cleanup code could hang as well.
        os._exit(1)
