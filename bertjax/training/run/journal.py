"""Append-only files that wait in memory: for disks that may be full, and for object stores that cannot append."""

import collections
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable

from etils import epath

from bertjax.runtime import storage
from bertjax.training.run.workdir import cut_jsonl, next_segment, segment

log = logging.getLogger(__name__)

# An object store cannot append: each flush uploads the newest segment again.
_SECONDS_BETWEEN_UPLOADS = 30.0
# Limit on the bytes in memory while a store is down: at 500 bytes per line, 30,000 logged steps.
_MOST_WAITING_BYTES = 16 << 20


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


_SEGMENT_BYTES = 1 << 20


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
