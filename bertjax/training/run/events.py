"""Write TensorBoard event files with scalars, without TensorFlow."""

import collections
import logging
import math
import os
import socket
import struct
import threading
import time

from etils import epath
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from bertjax.runtime import storage
from bertjax.training.run.growing import GrowingFile

# An object store cannot append: each flush uploads the newest file again.
_SECONDS_BETWEEN_UPLOADS = 30.0
_FILE_BYTES = 4 << 20
_MOST_WAITING = 20_000

log = logging.getLogger(__name__)


class Events:
    """Event files for one start, a new file every 4 MiB. Steps wait in memory until `LogWriter` writes them.

    Args:
      path: folder for the files.
      restored_step: step that this start continues from; TensorBoard drops later steps from earlier starts.
    """

    def __init__(self, path: epath.Path, restored_step: int):
        self.path, self._first_step = path, restored_step + 1
        # TensorBoard reads files in the order of their names. The time alone is not unique: two starts may share a
        # second.
        name = f"events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}.{self._first_step}.{os.getpid()}"
        self._file = GrowingFile(
            lambda number: path / f"{name}.{number:05}", segment_bytes=_FILE_BYTES, header=self._header
        )
        self._lock = threading.Lock()
        self._waiting: collections.deque[tuple[float, int, dict]] = collections.deque()
        self._made = self._lost = False
        self._uploaded = -math.inf

    def add(self, step: int, scalars: dict[str, float]) -> None:
        """Queue the scalars of a step."""
        with self._lock:
            self._waiting.append((time.time(), step, scalars))
            self._limit()

    def write(self, everything: bool) -> None:
        """Write the queued steps; without `everything`, at most every 30 seconds to an object store.

        Raises:
          StorageError: they cannot be written; they stay in the queue.
        """
        remote = storage.is_remote(self.path)
        due = everything or not remote or time.monotonic() - self._uploaded > _SECONDS_BETWEEN_UPLOADS
        if not self._waiting or not due:
            return
        self._uploaded = time.monotonic()
        with self._lock:
            steps, self._waiting = self._waiting, collections.deque()
        try:
            if not self._made:
                with storage.storage_errors(self.path):
                    self.path.mkdir(parents=True, exist_ok=True)
                self._made = True
            self._file.add(b"".join(_framed(_event(*step)) for step in steps))
        except BaseException:
            with self._lock:  # put them back in front of steps that were queued in the meantime
                self._waiting.extendleft(reversed(steps))
                self._limit()
            raise

    def _limit(self) -> None:
        # Drop the oldest steps: with a full buffer, the newest state of a run is worth more.
        while len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft()
            if not self._lost:
                log.warning("events could not be written to %s for so long that TensorBoard will miss steps", self.path)
            self._lost = True

    def _header(self, number: int) -> bytes:
        """Return a file's first records: the format version, and in the first file this start's step."""
        header = _framed(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if number == 0:
            # On a START record, TensorBoard discards events of this step and later ones from files that it read before.
            start = SessionLog(status=SessionLog.START)
            header += _framed(Event(wall_time=time.time(), step=self._first_step, session_log=start))
        return header


def _event(wall_time: float, step: int, scalars: dict[str, float]) -> Event:
    values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
    return Event(wall_time=wall_time, step=step, summary=Summary(value=values))


def _framed(event: Event) -> bytes:
    """Frame an event as a TFRecord: length, data, and a masked CRC-32C after each."""
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return b"".join((length, struct.pack("<I", masked_crc32c(length)), data, struct.pack("<I", masked_crc32c(data))))
