"""Append-only files, and the background thread that writes logs: slow or failing storage neither ends nor delays a run.

Lines wait in memory: for disks that may be full, and for object stores that cannot append.
"""

import collections
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from etils import epath

from bertjax.runtime import storage
from bertjax.training.run.lease import Lease
from bertjax.training.run.workdir import cut_jsonl, next_segment, segment

log = logging.getLogger(__name__)

# An object store cannot append: each flush uploads the newest segment again.
_SECONDS_BETWEEN_UPLOADS = 30.0
# Limit on the bytes in memory while a store is down: at 500 bytes per line, 30,000 logged steps.
_MOST_WAITING_BYTES = 16 << 20
_SEGMENT_BYTES = 1 << 20
_SECONDS_BETWEEN_ROUNDS = 0.2
_SECONDS_BETWEEN_ATTEMPTS = 5.0
# Time limits for flushing logs: before a checkpoint, at the end of a run, and after a failure.
_SECONDS_AT_A_SAVE = 5.0
_SECONDS_AT_THE_END = 60.0
_SECONDS_AFTER_A_FAILURE = 5.0


class GrowingFile:
    """An append-only file, split into segments. What is added waits in memory until `LogWriter` writes it.

    Args:
      path: the file, or the folder of its segments; for messages and `LogWriter`.
      path_of: returns a segment's path by its number.
      number: first segment to write.
      segment_bytes: size at which the next segment starts; small on an object store.
      header: returns a segment's first bytes by its number.
    """

    def __init__(
        self,
        path: epath.Path,
        path_of: Callable[[int], epath.Path],
        number: int = 0,
        segment_bytes: float = math.inf,
        header: Callable[[int], bytes] = lambda number: b"",
    ):
        self.path, self._path_of, self._number = path, path_of, number
        self._segment_bytes, self._header = segment_bytes, header
        self._remote = storage.is_remote(path)
        self._size = 0
        self._content = b""  # of the newest segment, on an object store
        self._lock = threading.Lock()
        self._waiting: collections.deque[bytes] = collections.deque()
        self._waiting_bytes = 0
        self._uploaded = -math.inf
        self._lost = False

    def put(self, record: bytes) -> None:
        """Queue a record."""
        with self._lock:
            self._waiting.append(record)
            self._waiting_bytes += len(record)
            self._limit()

    def write(self, everything: bool) -> None:
        """Write the queued records; without `everything`, at most every 30 seconds to an object store.

        Raises:
          StorageError: they cannot be written; they stay in the queue.
        """
        due = everything or not self._remote or time.monotonic() - self._uploaded > _SECONDS_BETWEEN_UPLOADS
        if not self._waiting or not due:
            return
        self._uploaded = time.monotonic()
        with self._lock:
            records, self._waiting, self._waiting_bytes = self._waiting, collections.deque(), 0
        try:
            self._add(b"".join(records))
        except BaseException:
            with self._lock:  # put them back in front of records that were queued in the meantime
                self._waiting.extendleft(reversed(records))
                self._waiting_bytes += sum(map(len, records))
                self._limit()
            raise

    def _limit(self) -> None:
        # Drop the oldest records: with a full buffer, the newest state of a run is worth more.
        while self._waiting_bytes > _MOST_WAITING_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft())
            if not self._lost:
                log.warning("%s could not be written for so long that its oldest waiting records are lost", self.path)
            self._lost = True

    def _add(self, content: bytes) -> None:
        """Append bytes, all of them or nothing."""
        path = self._path_of(self._number)
        if not self._size:
            content = self._header(self._number) + content
        with storage.storage_errors(path):
            # After an error the content of the object is unknown, but the next upload replaces all of it.
            if self._remote:
                storage.write_bytes(path, self._content + content)
                self._content += content
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                _append(path, content)
        self._size += len(content)
        if self._size >= self._segment_bytes:
            self._number, self._size, self._content = self._number + 1, 0, b""


def _append(path: epath.Path, content: bytes) -> None:
    # Unbuffered: a full disk shows at once, and `write` returns how much of the content it took.
    with open(path, "ab", buffering=0) as file:
        size = file.tell()
        try:
            while content:
                content = content[file.write(content) :]
        except OSError:
            os.ftruncate(file.fileno(), size)  # remove a partial record, since the caller writes all of them again
            raise


class Journal(GrowingFile):
    """A JSON Lines file.

    Args:
      path: the file; existing lines are kept. On an object store the lines are in segments, see `read_jsonl`.
      last_step: existing records of later steps are dropped, and so is a truncated last line.
      most_bytes: limit on the bytes of this start; further lines are left out, with one warning.
    """

    def __init__(self, path: epath.Path, last_step: float = math.inf, most_bytes: float = math.inf):
        cut_jsonl(path, last_step)
        self._left, self._full = most_bytes, False
        if storage.is_remote(path):
            super().__init__(path, lambda number: segment(path, number), next_segment(path), _SEGMENT_BYTES)
        else:
            super().__init__(path, lambda number: path)

    def append(self, record: dict) -> None:
        """Queue a line."""
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        if len(line) > self._left and not self._full:
            log.warning("%s has enough lines of this start; later ones are left out", self.path)
            self._full = True
        if not self._full:  # also lines that are short enough: a gap in the middle would be hard to notice
            self._left -= len(line)
            self.put(line)


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
