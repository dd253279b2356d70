"""Append-only files, and the background thread that writes logs: slow or failing storage neither ends nor delays a run.

Lines wait in memory: for disks that may be full, and for object stores that cannot append.
"""

import collections
import contextlib
import json
import logging
import math
import os
import queue
import socket
import struct
import threading
import time
from typing import Any

from etils import epath
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from bertjax.runtime import storage
from bertjax.training.run.lease import Lease
from bertjax.training.run.workdir import cut_jsonl, next_segment

log = logging.getLogger(__name__)

# An object store cannot append: each flush uploads the newest segment again.
_SECONDS_BETWEEN_UPLOADS = 30.0
_SEGMENT_BYTES, _EVENT_FILE_BYTES = 1 << 20, 4 << 20
# Limit on the bytes in memory while a store is down: at 500 bytes per line, 30,000 logged steps.
_MOST_WAITING_BYTES = 16 << 20
_SECONDS_BETWEEN_ROUNDS = 0.2
_SECONDS_BETWEEN_ATTEMPTS = 5.0
# Time limits for flushing logs: before a checkpoint, at the end of a run, and after a failure.
_SECONDS_AT_A_SAVE = 5.0
_SECONDS_AT_THE_END = 60.0
_SECONDS_AFTER_A_FAILURE = 5.0


class GrowingFile:
    """An append-only file, or a folder of its segments. What is added waits in memory until `LogWriter` writes it.

    Args:
      path: the file or folder.
      number: first segment to write.
      segment_bytes: size at which the next segment starts; small on an object store.
    """

    def __init__(self, path: epath.Path, number: int = 0, segment_bytes: float = math.inf):
        self.path, self._number, self._segment_bytes = path, number, segment_bytes
        self._is_remote = storage.is_remote(path)
        self.every = _SECONDS_BETWEEN_UPLOADS if self._is_remote else 0.0
        self._waiting: collections.deque[bytes] = collections.deque()
        self._waiting_bytes = 0
        self._size, self._content = 0, b""  # of the newest segment; the content only on an object store
        self._lock, self._lost = threading.Lock(), False

    def segment(self) -> epath.Path:
        """Return the path of the newest segment."""
        return self.path

    def header(self) -> bytes:
        """Return the first bytes of the newest segment."""
        return b""

    def put(self, record: bytes) -> None:
        """Queue a record. A full queue drops its oldest: the newest state of a run is worth more."""
        with self._lock:
            self._waiting.append(record)
            self._waiting_bytes += len(record)
            while self._waiting_bytes > _MOST_WAITING_BYTES:
                self._waiting_bytes -= len(self._waiting.popleft())
                if not self._lost:
                    what = "could not be written for so long that its oldest waiting records are lost"
                    log.warning("%s %s", self.path, what)
                self._lost = True

    def write(self) -> None:
        """Write the queued records.

        Raises:
          OSError: they cannot be written; they stay in the queue.
        """
        with self._lock:
            records = [*self._waiting]
        if not records:
            return
        path, content = self.segment(), b"".join([b"" if self._size else self.header(), *records])
        if self._is_remote:  # after an error the object's content is unknown, but the next upload replaces all of it
            storage.write_bytes(path, self._content + content)
            self._content += content
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            _append(path, content)
        with self._lock:
            for record in records:
                if self._waiting and self._waiting[0] is record:  # otherwise a full queue dropped it in the meantime
                    self._waiting_bytes -= len(self._waiting.popleft())
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
      most_bytes: limit on the bytes of this start; later lines are left out, with one warning.
    """

    def __init__(self, path: epath.Path, last_step: float = math.inf, most_bytes: float = math.inf):
        cut_jsonl(path, last_step)
        self._left = most_bytes
        super().__init__(path, next_segment(path), _SEGMENT_BYTES if storage.is_remote(path) else math.inf)

    def segment(self) -> epath.Path:
        path = self.path
        return path.with_name(f"{path.stem}-{self._number:05}{path.suffix}") if self._is_remote else path

    def append(self, record: dict) -> None:
        """Queue a line."""
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        if len(line) <= self._left:
            self._left -= len(line)
            self.put(line)
        elif self._left >= 0:
            log.warning("%s has enough lines of this start; later ones are left out", self.path)
            self._left = -1.0  # for shorter lines, too: a gap in the middle would be hard to notice


class Events(GrowingFile):
    """TensorBoard's event files of one start, a new file every 4 MiB.

    Args:
      path: folder for the files.
      restored_step: step that this start continues from; TensorBoard drops later steps from earlier starts.
    """

    def __init__(self, path: epath.Path, restored_step: int):
        super().__init__(path, segment_bytes=_EVENT_FILE_BYTES)
        self._first_step = restored_step + 1
        # TensorBoard reads files in the order of their names. The time alone is not unique: two starts may share a
        # second.
        start = f"{int(time.time()):010}.{socket.gethostname()}.{self._first_step}.{os.getpid()}"
        self._name = f"events.out.tfevents.{start}"

    def segment(self) -> epath.Path:
        return self.path / f"{self._name}.{self._number:05}"

    def header(self) -> bytes:
        # On a START record, TensorBoard discards events of this step and later ones from files that it read before.
        start = _framed(step=self._first_step, session_log=SessionLog(status=SessionLog.START))
        return _framed(file_version="brain.Event:2") + (b"" if self._number else start)

    def add(self, step: int, scalars: dict[str, float]) -> None:
        """Queue the scalars of a step."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self.put(_framed(step=step, summary=Summary(value=values)))


def _framed(**content) -> bytes:
    """Return an event as a TFRecord: length, data, and a masked CRC-32C after each."""
    data = Event(wall_time=time.time(), **content).SerializeToString()
    length = struct.pack("<Q", len(data))
    return b"".join((length, struct.pack("<I", masked_crc32c(length)), data, struct.pack("<I", masked_crc32c(data))))


class LogWriter:
    """A thread that writes metrics, samples, spikes, events, newest results, elapsed time and the heartbeat.

    Sinks are files with a buffer in memory, such as `GrowingFile`: they have a `path`, `write()` writes the buffer, and
    the writer calls it once in `every` seconds. Failures are logged once and retried. Meanwhile, sinks buffer a bounded
    number of lines.

    Args:
      active: False in processes that do not write; all methods then do nothing.
      lock: lock of the workdir. Once it is lost, nothing is written, since another process may own the files.
    """

    def __init__(self, active: bool = True, lock: Lease | None = None):
        self.active, self._lock = active, lock
        self._sinks: list[Any] = []
        self._requests: queue.SimpleQueue[threading.Event | None] = queue.SimpleQueue()
        self._due: dict[epath.Path, float] = {}  # {sink: time of the next write}
        self._failed: set[epath.Path] = set()
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)

    def __enter__(self) -> "LogWriter":
        if self.active:
            self._thread.start()
        return self

    def __exit__(self, kind: type | None, *_) -> None:
        is_written = self.flush(_SECONDS_AFTER_A_FAILURE if kind else _SECONDS_AT_THE_END)
        self._requests.put(None)
        if is_written and self._thread.is_alive():  # do not wait a second time for a file that cannot be written
            self._thread.join(_SECONDS_AFTER_A_FAILURE)  # from here on, it does not change any file

    def add(self, *sinks: Any) -> None:
        """Add sinks to write."""
        self._sinks += sinks

    def save(self) -> None:
        """Write all lines before a checkpoint, so that a resumed run does not miss any, if the store answers."""
        self.flush(0.0 if self._failed else _SECONDS_AT_A_SAVE)

    def flush(self, seconds: float = _SECONDS_AT_THE_END) -> bool:
        """Request a write of everything, wait for it, and return whether it succeeded in time."""
        if not (self.active and self._thread.is_alive()):
            return not self.active
        self._requests.put(done := threading.Event())
        return done.wait(seconds) and not self._failed

    def _run(self) -> None:
        while True:
            requests = []
            with contextlib.suppress(queue.Empty):
                requests.append(self._requests.get(timeout=_SECONDS_BETWEEN_ROUNDS))
                while True:  # one round for all that asked while a store hung
                    requests.append(self._requests.get_nowait())
            for sink in [*self._sinks]:
                self._write(sink, everything=any(requests))
            for request in filter(None, requests):
                request.set()
            if None in requests:
                return

    def _write(self, sink: Any, everything: bool) -> None:
        if not everything and time.monotonic() < self._due.get(sink.path, -math.inf):
            return
        self._due[sink.path] = time.monotonic() + sink.every
        try:
            if self._lock:
                self._lock.check()
            sink.write()
        except Exception as error:  # no error may end the run
            if sink.path not in self._failed:
                log.warning("%s cannot be written (%s); what it misses waits in memory", sink.path, error)
            self._failed.add(sink.path)
            self._due[sink.path] = time.monotonic() + _SECONDS_BETWEEN_ATTEMPTS
        else:
            self._failed.discard(sink.path)
