"""Scalars for TensorBoard, written by the calling thread: a thread that dies of a full disk would stop the run."""

import contextlib
import logging
import math
import os
import tempfile
import time
from pathlib import Path

from etils import epath
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from bertjax.storage import is_remote

_SECONDS_BETWEEN_FLUSHES = 15.0

log = logging.getLogger(__name__)


class Events:
    """The events files of one start of a run. Steps that cannot be written are left out, with one warning.

    Args:
      folder: folder of the files; for an object store they are written locally and copied.
      restored_step: the step from which this start continues; TensorBoard drops later steps of earlier starts.
    """

    def __init__(self, folder: epath.Path, restored_step: int):
        self._folder, self._first_step = folder, restored_step + 1
        self._scratch = tempfile.TemporaryDirectory() if is_remote(folder) else None
        self._writer: EventsWriter | None = None
        self._files = 0
        self._flushed = -math.inf
        self._failed = False

    def add(self, step: int, scalars: dict[str, float]) -> None:
        """Log the scalars of a step."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        try:
            if self._writer is None:
                self._start_file()
            self._writer.write_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
            if time.monotonic() - self._flushed > _SECONDS_BETWEEN_FLUSHES:
                self._flush()
        except OSError as error:
            if not self._failed:
                log.warning("events cannot be written to %s (%s); TensorBoard will miss steps", self._folder, error)
            self._failed = True
            self._writer = None  # the file may end in half an event: the next event starts a new file

    def close(self) -> None:
        """Write what is left."""
        if self._writer:
            with contextlib.suppress(OSError):
                self._flush()
                self._writer.close()

    def _start_file(self) -> None:
        folder = Path(self._scratch.name if self._scratch else self._folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._files += 1
        # A name of its own: the clock may show the same second as at an earlier start.
        self._writer = EventsWriter(str(folder / "events"), f".{self._first_step}.{os.getpid()}.{self._files}")
        start = SessionLog(status=SessionLog.START)
        self._writer.write_event(Event(wall_time=time.time(), step=self._first_step, session_log=start))

    def _flush(self) -> None:
        self._flushed = time.monotonic()
        self._writer.flush()
        if self._scratch:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in Path(self._scratch.name).iterdir():
                (self._folder / path.name).write_bytes(path.read_bytes())
