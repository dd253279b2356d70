"""A background thread that writes logs, so that slow or failing storage neither ends a run nor delays a step."""

import logging
import threading
import time
from typing import Protocol

from etils import epath

from bertjax.runtime import storage
from bertjax.training.run.lease import Lease

_SECONDS_BETWEEN_ROUNDS = 0.2
_SECONDS_BETWEEN_ATTEMPTS = 5.0
# Time limits for flushing logs: before a checkpoint, at the end of a run, and after a failure.
_SECONDS_AT_A_SAVE = 5.0
_SECONDS_AT_THE_END = 60.0
_SECONDS_AFTER_A_FAILURE = 5.0

log = logging.getLogger(__name__)


class Sink(Protocol):
    """A log file or folder with a buffer in memory. Only the writer's thread calls `write`."""

    path: epath.Path

    def write(self, everything: bool) -> None:
        """Write the part of the buffer that is due; with `everything`, the whole buffer."""


class LogWriter:
    """A thread that writes metrics, samples, spikes, events, newest results, elapsed time and the heartbeat.

    Failures are logged once and retried. Meanwhile, sinks buffer a bounded number of lines.

    Args:
      active: False in processes that do not write; all methods then do nothing.
      lock: lock of the workdir. Once it is lost, nothing is written, since another process may own the files.
    """

    def __init__(self, active: bool = True, lock: Lease | None = None):
        self.active, self._lock = active, lock
        self._sinks: list[Sink] = []
        self._changed = threading.Condition()
        self._asked = self._done = 0
        self._ended = False
        self._failed: dict[epath.Path, float] = {}  # {sink that cannot be written: time of the next attempt}
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)

    def __enter__(self) -> "LogWriter":
        if self.active:
            self._thread.start()
        return self

    def __exit__(self, kind: type | None, *_) -> None:
        is_written = self.flush(_SECONDS_AFTER_A_FAILURE if kind else _SECONDS_AT_THE_END)
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if is_written and self._thread.is_alive():  # do not wait a second time for a file that cannot be written
            self._thread.join(_SECONDS_AFTER_A_FAILURE)  # from here on, it does not change any file

    def add(self, *sinks: Sink) -> None:
        """Add sinks to write."""
        if self.active:
            self._sinks += sinks

    def save(self) -> None:
        """Write all lines before a checkpoint, so that a resumed run does not miss any, if the store answers."""
        self.flush(0.0 if self._failed else _SECONDS_AT_A_SAVE)

    def flush(self, seconds: float = _SECONDS_AT_THE_END) -> bool:
        """Request a write of everything, wait for it, and return whether it succeeded in time."""
        if not (self.active and self._thread.is_alive()):
            return not self.active
        with self._changed:
            # A ticket, because a round that is already running may have passed some of the lines.
            self._asked += 1
            ticket = self._asked
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._done >= ticket, seconds) and not self._failed

    def _run(self) -> None:
        while not self._ended:
            with self._changed:
                self._changed.wait_for(lambda: self._asked > self._done or self._ended, _SECONDS_BETWEEN_ROUNDS)
                asked, everything = self._asked, self._asked > self._done
            for sink in list(self._sinks):
                self._write(sink, everything)
            # Writing happens outside of the lock, so that a slow store never blocks `flush` or `add`.
            with self._changed:
                self._done = asked
                self._changed.notify_all()

    def _write(self, sink: Sink, everything: bool) -> None:
        if not everything and time.monotonic() < self._failed.get(sink.path, 0.0):
            return
        try:
            if self._lock:
                self._lock.check()
            with storage.storage_errors(sink.path):
                sink.write(everything)
        except Exception as error:  # no error may end the run
            if sink.path not in self._failed:
                log.warning("%s cannot be written (%s); what it misses waits in memory", sink.path, error)
            self._failed[sink.path] = time.monotonic() + _SECONDS_BETWEEN_ATTEMPTS
        else:
            self._failed.pop(sink.path, None)
