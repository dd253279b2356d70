"""The thread that writes what is only a log: a store that is slow or down neither ends a run nor delays a step."""

import logging
import threading
import time
from typing import Protocol

from etils import epath

from bertjax import storage
from bertjax.training.run.lease import Lease

_SECONDS_BETWEEN_ROUNDS = 0.2
_SECONDS_BETWEEN_ATTEMPTS = 5.0
# How long a save, the end of a run, and a run that fails wait for the logs.
_SECONDS_AT_A_SAVE = 5.0
_SECONDS_AT_THE_END = 60.0
_SECONDS_AFTER_A_FAILURE = 5.0

log = logging.getLogger(__name__)


class Sink(Protocol):
    """A file or folder of logs that collects in memory what `write` writes. Only the writer's thread calls `write`."""

    path: epath.Path

    def write(self, everything: bool) -> None:
        """Write what is due; with `everything`, all that was collected."""


class LogWriter:
    """One thread that writes metrics, samples, spikes, events, the newest results, elapsed seconds and the heartbeat.

    A failure is logged once and tried again; the sinks keep a bounded number of lines meanwhile.

    Args:
      active: False in processes that write nothing; it then does nothing.
      lock: the lock of the workdir; nothing is written while it is lost.
    """

    def __init__(self, active: bool = True, lock: Lease | None = None):
        self.active, self._lock = active, lock
        self._sinks: list[Sink] = []
        self._changed = threading.Condition()
        self._asked = self._done = 0
        self._ended = False
        self._failed: dict[epath.Path, float] = {}
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
        if is_written and self._thread.is_alive():  # if a file cannot be written, nobody waits for it again
            self._thread.join(_SECONDS_AFTER_A_FAILURE)  # afterwards, it changes no file

    def add(self, *sinks: Sink) -> None:
        """Write further sinks from now on."""
        if self.active:
            self._sinks += sinks

    def save(self) -> None:
        """Write all lines up to now before a checkpoint that a resumed run continues from, if their store answers."""
        self.flush(0.0 if self._failed else _SECONDS_AT_A_SAVE)

    def finish(self) -> bool:
        """Write all lines at the end of a run, and return whether that succeeded within a minute."""
        return self.flush(_SECONDS_AT_THE_END)

    def flush(self, seconds: float) -> bool:
        """Ask for everything to be written, wait until it is, and return whether it was written in time."""
        if not (self.active and self._thread.is_alive()):
            return not self.active
        with self._changed:
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
        except Exception as error:  # whatever it is, it ends no run
            if sink.path not in self._failed:
                log.warning("%s cannot be written (%s); what it misses waits in memory", sink.path, error)
            self._failed[sink.path] = time.monotonic() + _SECONDS_BETWEEN_ATTEMPTS
        else:
            self._failed.pop(sink.path, None)
