"""Write TensorBoard event files with scalars, without TensorFlow."""

import os
import socket
import struct
import time

from etils import epath
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from bertjax.training.run.journal import GrowingFile

_FILE_BYTES = 4 << 20


class Events(GrowingFile):
    """Event files for one start, a new file every 4 MiB.

    Args:
      path: folder for the files.
      restored_step: step that this start continues from; TensorBoard drops later steps from earlier starts.
    """

    def __init__(self, path: epath.Path, restored_step: int):
        self._first_step = restored_step + 1
        # TensorBoard reads files in the order of their names. The time alone is not unique: two starts may share a
        # second.
        name = f"events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}.{self._first_step}.{os.getpid()}"
        super().__init__(
            path, lambda number: path / f"{name}.{number:05}", segment_bytes=_FILE_BYTES, header=self._first_records
        )

    def add(self, step: int, scalars: dict[str, float]) -> None:
        """Queue the scalars of a step."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self.put(_framed(Event(wall_time=time.time(), step=step, summary=Summary(value=values))))

    def _first_records(self, number: int) -> bytes:
        """Return a file's first records: the format version, and in the first file this start's step."""
        header = _framed(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if number == 0:
            # On a START record, TensorBoard discards events of this step and later ones from files that it read before.
            start = SessionLog(status=SessionLog.START)
            header += _framed(Event(wall_time=time.time(), step=self._first_step, session_log=start))
        return header


def _framed(event: Event) -> bytes:
    """Frame an event as a TFRecord: length, data, and a masked CRC-32C after each."""
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return b"".join((length, struct.pack("<I", masked_crc32c(length)), data, struct.pack("<I", masked_crc32c(data))))
