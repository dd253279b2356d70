"""Signs of life and of failure: a watchdog for steps that hang, the heartbeat, and failures that repeat."""

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
from typing import Any, NamedTuple

import jax
from etils import epath

from bertjax.runtime import command_line, storage
from bertjax.runtime.errors import FailedAgain, RunFailed, UserError
from bertjax.runtime.storage import reason_of
from bertjax.training.parallel import processes
from bertjax.training.run.notify import Notifier
from bertjax.training.run.workdir import read_jsonl, write_jsonl

TRAINING = "training"

# Factor on `hang_timeout` outside of steps. Steps repeat thousands of times; everything else happens once, or may wait
# for a slower process.
_PATIENCE = 3.0
# A step that usually takes milliseconds may be seconds late without being stuck.
_LEAST_SECONDS = 30.0
_FACTOR = 20.0
_KNOWN_STEPS = 5
_STDERR = 2

# Number of recorded failures; older ones are dropped.
_KEPT = 100
# XLA status codes for errors in the program itself, which fail on every device.
_OF_PROGRAM = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNIMPLEMENTED", "FAILED_PRECONDITION", "OUT_OF_RANGE")

log = logging.getLogger(__name__)


class _Activity(NamedTuple):
    """What a run does, since when (by two clocks), and the seconds after which it counts as hanging."""

    name: str
    since: float
    limit: float
    time: float


class Watchdog:
    """Tracks a run's state and ends the process when it makes no progress.

    In the state `training`, a dispatch may take `hang_timeout` seconds. Progress is a completed dispatch, since metrics
    for all its steps arrive together. Any other state may take three times as long. So may the first step after it,
    because another process may still be in that state.

    `LogWriter` writes the heartbeat every ten seconds: {`step`, `time`, `state`, `steps`, `started`}, and the end.
    `time` is when the run last made progress, so the file does not change while a step hangs. Readers recognize a file
    from an earlier start by `started`.

    To end the process, the watchdog prints a line and the stacks of all threads to stderr and exits with code 1. If the
    interpreter itself is blocked, for example by a page fault in a file mapped from a dead server, a `faulthandler`
    timer does the same ten ticks later. That timer is not a Python thread.

    A dispatch that takes 20 times as long as the median is only logged, with the stacks.

    Args:
      hang_timeout: seconds; 0 never ends the process.
      path: JSON file of the heartbeat.
      notify: called when a step is late and when the process is ended. Other code uses it for other events.
      least: a step is never late before this many seconds.
    """

    every = 10.0

    def __init__(
        self,
        hang_timeout: float,
        path: epath.Path | None = None,
        notify: Notifier | None = None,
        least: float = _LEAST_SECONDS,
    ):
        self._hang_timeout, self._least = hang_timeout or math.inf, least
        self.path = path or epath.Path(os.devnull)
        self.notify = notify or Notifier("", "")
        self._tick = min(1.0, least / 10, self._hang_timeout / 10)
        self._durations: collections.deque[float] = collections.deque(maxlen=101)
        self._step = self._steps = 0
        self._started = time.time()
        self._end: dict[str, int | str] = {}
        self._written: dict[str, Any] = {}
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
        """Enter a final state, `finished`, `stopped` or `failed`, with the exit code and why the start failed."""
        self._end = {"exit_code": exit_code} | ({"failure": failure} if failure else {})
        self._enter(name, is_watched=True)

    def locate(self, step: int, steps: int) -> None:
        """Set the number of steps done and the number of all steps."""
        self._step, self._steps = step, steps

    def write(self) -> None:
        """Write the heartbeat if it has changed.

        Raises:
          StorageError: it cannot be written.
        """
        limit = self._hang_timeout
        name, _, _, progress = self._current
        progress = progress if name == TRAINING or self._end else time.time()
        record = {"step": self._step, "time": progress, "state": name, "steps": self._steps, "started": self._started}
        record |= {"hang_timeout": limit if math.isfinite(limit) else 0.0, **self._end}
        if record != self._written:
            storage.write_text(self.path, json.dumps(record) + "\n")
            self._written = record

    def beat(self, step: int | None = None) -> None:
        """Report progress: an evaluation batch, or the dispatch that completes `step` steps."""
        now = time.monotonic()
        if step is None:
            self._current = self._current._replace(since=now)
            return
        self._step = step
        self._durations.append(now - self._current.since)
        self._current = _Activity(self._current.name, now, self._hang_timeout, time.time())

    def _enter(self, name: str, is_watched: bool) -> None:
        limit = _PATIENCE * self._hang_timeout if is_watched else math.inf
        # One tuple, so that the thread never sees the name of one state and the limit of another.
        self._current = _Activity(name, time.monotonic(), limit, time.time())

    def _watch(self) -> None:
        late = None
        while not self._ended.wait(self._tick):
            name, since, limit, _ = self._current
            waited = time.monotonic() - since
            if waited > limit:
                self._end_process(name, waited)
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
        self.notify.close()
        # Not `sys.exit`: it would end this thread only, and cleanup code could hang as well.
        os._exit(1)


class NotFinite(RunFailed):
    """Too many consecutive losses or gradients are not finite. All processes detect this at the same step."""


class Failures:
    """A run's failures over all starts, in `failures.jsonl`: checkpoint, step, reason and time.

    A failure counts if the same step from the same checkpoint would probably fail again. These are non-finite losses
    and, with one process, all unexpected errors except for device errors (`is_of_device`). With several processes an
    unexpected error may only be a consequence of another process's end. Errors in storage, input or saving do not
    count, because their cause is not in the step.

    Args:
      path: the file.
      checkpoint: step that this start continues from.
    """

    def __init__(self, path: epath.Path, checkpoint: int):
        self._path, self._checkpoint = path, checkpoint
        # One process reads for all, so that every process can decide by itself whether a failure repeats.
        self._records = processes.from_writer(lambda: read_jsonl(path)[-_KEPT:], "failures")

    def judge(self, step: int, error: Exception) -> Exception:
        """Record a step's failure and return the error to raise, with an explanation if the cause is known.

        If the last failure was the same, it is `FailedAgain`, which tells a launcher not to restart the run.
        """
        if not isinstance(error, NotFinite) and (isinstance(error, UserError | OSError) or is_of_device(error)):
            return error
        known = explained(error, step)
        if jax.process_count() > 1 and not isinstance(error, NotFinite):
            return known
        place = {"checkpoint": self._checkpoint, "step": step}
        failed_before = bool(self._records) and self._records[-1].items() >= place.items()
        record = place | {"reason": reason_of(error), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        if processes.is_writer():
            try:
                write_jsonl(self._path, [*self._records[1 - _KEPT :], record])
            except (OSError, UserError) as failure:  # must not hide the original error
                log.warning("%s cannot be written: %s", self._path, failure)
        # A first failure may be bad luck, such as a flipped bit. Only a repeated one is worth stopping a launcher.
        if not failed_before:
            return known
        if known is not error:
            return FailedAgain(f"{known}; it failed twice from checkpoint {self._checkpoint}")
        return FailedAgain(
            f"step {step} failed twice from checkpoint {self._checkpoint} ({record['reason']}); the same command would "
            "fail again: see docs/guides/running.md#when-a-run-diverges"
        )


def is_of_device(error: Exception) -> bool:
    """Return whether an error may come from the device rather than from the program on it.

    A failing chip raises XLA's INTERNAL, UNAVAILABLE, DATA_LOSS or ABORTED. The step may succeed on another machine, so
    a launcher should retry it. Out of memory and failed compilations happen everywhere.
    """
    return isinstance(error, jax.errors.JaxRuntimeError) and not str(error).startswith(_OF_PROGRAM)


def explained(error: Exception, step: int) -> Exception:
    """Return a one-line error with a remedy if a step ran out of memory, else the error itself."""
    if not (isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)):
        return error
    return RunFailed(
        f"step {step} does not fit into memory ({reason_of(error)}); set runtime.micro_tokens, so that a device "
        "computes a batch in parts, lower stages.N.batch or stages.N.examples, or set runtime.remat=full"
    )
