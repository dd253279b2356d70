"""Files of JSON lines that grow with a run, on disks that may be full and on object stores that cannot append."""

import json
import logging
import math
import os
import time

from etils import epath

from bertjax import storage
from bertjax.training.run.workdir import cut_jsonl

# An object store cannot append: each flush writes the full file again.
_SECONDS_BETWEEN_UPLOADS = 30.0

log = logging.getLogger(__name__)


class Journal:
    """A file of JSON lines. Lines that cannot be written yet wait in memory, and the run continues.

    Args:
      path: the file; existing lines are kept.
      last_step: records of later steps are dropped, and so is a line that was cut short.
    """

    def __init__(self, path: epath.Path, last_step: float = math.inf):
        cut_jsonl(path, last_step)
        self._path = path
        self._remote = storage.is_remote(path)
        self._written = path.read_text(encoding="utf-8") if self._remote and path.exists() else ""
        self._waiting = ""
        self._uploaded = -math.inf
        self._failed = False

    def append(self, record: dict) -> None:
        """Add a line."""
        self._waiting += json.dumps(record, ensure_ascii=False) + "\n"
        if not self._remote or time.monotonic() - self._uploaded > _SECONDS_BETWEEN_UPLOADS:
            self.flush()

    def flush(self) -> None:
        """Write the waiting lines; the first failure is logged."""
        if not self._waiting:
            return
        try:
            self._write()
        except OSError as error:
            if not self._failed:
                log.warning("%s cannot be written (%s); its lines wait in memory", self._path, error)
            self._failed = True
        else:
            self._waiting, self._failed = "", False

    def _write(self) -> None:
        if self._remote:
            self._uploaded = time.monotonic()
            storage.write_text(self._path, self._written + self._waiting)
            self._written += self._waiting
            return
        with open(self._path, "ab", buffering=0) as file:
            size = file.tell()
            lines = self._waiting.encode()
            try:
                while lines:
                    lines = lines[file.write(lines) :]
            except OSError:
                os.ftruncate(file.fileno(), size)  # remove a half line: the lines are written again
                raise
