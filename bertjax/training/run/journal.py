"""Append-only JSON Lines files."""

import json
import logging
import math

from etils import epath

from bertjax.runtime import storage
from bertjax.training.run.growing import GrowingFile
from bertjax.training.run.workdir import cut_jsonl, next_segment, segment

_SEGMENT_BYTES = 1 << 20

log = logging.getLogger(__name__)


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
