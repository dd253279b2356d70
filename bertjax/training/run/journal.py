"""Append-only JSON Lines files."""

import collections
import json
import logging
import math
import threading
import time

from etils import epath

from bertjax.runtime import storage
from bertjax.training.run.growing import GrowingFile
from bertjax.training.run.workdir import cut_jsonl, next_segment, segment

# An object store cannot append: each flush uploads the newest segment again.
_SECONDS_BETWEEN_UPLOADS = 30.0
_SEGMENT_BYTES = 1 << 20
# Limit on lines in memory while a store is down: at 500 bytes per line, 30,000 logged steps.
_MOST_WAITING_BYTES = 16 << 20

log = logging.getLogger(__name__)


class Journal:
    """A JSON Lines file. Lines wait in memory until `LogWriter` writes them.

    Args:
      path: the file; existing lines are kept. On an object store the lines are in segments, see `read_jsonl`.
      last_step: existing records of later steps are dropped, and so is a truncated last line.
      most_bytes: limit on the bytes of this start; further lines are left out, with one warning.
    """

    def __init__(self, path: epath.Path, last_step: float = math.inf, most_bytes: float = math.inf):
        cut_jsonl(path, last_step)
        self.path, self._left = path, most_bytes
        self._remote = storage.is_remote(path)
        if self._remote:
            self._file = GrowingFile(lambda number: segment(path, number), next_segment(path), _SEGMENT_BYTES)
        else:
            self._file = GrowingFile(lambda number: path)
        self._lock = threading.Lock()
        self._waiting: collections.deque[bytes] = collections.deque()
        self._waiting_bytes = 0
        self._uploaded = -math.inf
        self._lost = self._full = False

    def append(self, record: dict) -> None:
        """Queue a line."""
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        if len(line) > self._left and not self._full:
            log.warning("%s has enough lines of this start; later ones are left out", self.path)
            self._full = True
        if self._full:  # also lines that are short enough: a gap in the middle would be hard to notice
            return
        self._left -= len(line)
        with self._lock:
            self._waiting.append(line)
            self._waiting_bytes += len(line)
            self._limit()

    def write(self, everything: bool) -> None:
        """Write the queued lines; without `everything`, at most every 30 seconds to an object store.

        Raises:
          StorageError: they cannot be written; they stay in the queue.
        """
        due = everything or not self._remote or time.monotonic() - self._uploaded > _SECONDS_BETWEEN_UPLOADS
        if not self._waiting or not due:
            return
        self._uploaded = time.monotonic()
        with self._lock:
            lines, self._waiting, self._waiting_bytes = self._waiting, collections.deque(), 0
        try:
            self._file.add(b"".join(lines))
        except BaseException:
            with self._lock:  # put them back in front of lines that were queued in the meantime
                self._waiting.extendleft(reversed(lines))
                self._waiting_bytes += sum(map(len, lines))
                self._limit()
            raise

    def _limit(self) -> None:
        # Drop the oldest lines: with a full buffer, the newest state of a run is worth more.
        while self._waiting_bytes > _MOST_WAITING_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft())
            if not self._lost:
                log.warning("%s could not be written for so long that its oldest waiting lines are lost", self.path)
            self._lost = True
