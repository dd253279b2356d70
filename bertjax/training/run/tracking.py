"""Metrics for trackers: each has a thread of its own, so that one that hangs or fails stops neither run nor logs."""

import collections
import importlib.util
import json
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertjax import storage
from bertjax.errors import UserError
from bertjax.storage import is_remote
from bertjax.training.run.trackers import TRACKERS
from bertjax.training.run.trackers.base import TrackedRun, Tracker
from bertjax.training.run.workdir import Workdir, read_json, write_json
from bertjax.training.run.writer import LogWriter

_MOST_WAITING = 20_000
_SECONDS_BETWEEN_NOTES = 10.0

log = logging.getLogger(__name__)


def check_trackers(kinds: Sequence[str]) -> None:
    """Raise a UserError for a tracker that is unknown, or whose package is not installed."""
    for kind in kinds:
        package = TRACKERS.class_of(kind, trust_code=True).package
        if package and importlib.util.find_spec(package) is None:
            raise UserError(f"runtime.trackers has {kind!r}, and {package} is not installed; pip install {package}")


class Tracking:
    """Passes steps to a tracker, in a thread of its own. Used as a context, it completes the tracker's run at its end.

    `tracker-KIND.json` in the workdir holds the id of the run and the last step that was passed: a resumed run
    continues the same one and passes no step twice.

    Args:
      kind: the tracker, as in `runtime.trackers`.
      workdir: the workdir of the run.
      settings: the configuration as plain dicts.
    """

    def __init__(self, kind: str, workdir: Workdir, settings: dict[str, Any]):
        self.path = workdir.root / f"tracker-{kind.replace(':', '.')}.json"
        self._kind, self._workdir, self._settings = kind, workdir, settings
        self._waiting: collections.deque[tuple[int, dict[str, float]]] = collections.deque(maxlen=_MOST_WAITING)
        self._tracker: Tracker | None = None
        self._id, self._step = "", -1
        self._noted, self._is_ending = -math.inf, False
        self._writer = LogWriter()

    def __enter__(self) -> "Tracking":
        self._writer.add(self)
        self._writer.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._is_ending = True
        self._writer.__exit__(*error)

    def add(self, step: int, scalars: dict[str, float]) -> None:
        """Pass the scalars of a step to the tracker soon, without those that are not finite."""
        self._waiting.append((step, {name: value for name, value in scalars.items() if math.isfinite(value)}))

    def write(self, everything: bool) -> None:
        """Pass the waiting steps; at the end of the run, complete it. Only the tracker's thread calls this."""
        if self._tracker is None:
            if not self._waiting:
                return
            self._start()
        while self._waiting:
            step, scalars = self._waiting[0]
            if step > self._step:
                self._tracker.write(step, scalars)
                self._step = step
            self._waiting.popleft()
        if everything or time.monotonic() - self._noted > _SECONDS_BETWEEN_NOTES:
            self._note()
        if self._is_ending:
            self._tracker.close()
            self._tracker = None

    def _start(self) -> None:
        if not self._id and storage.exists(self.path):
            note = read_json(self.path, "id", "step")
            self._id, self._step = note["id"], note["step"]
        folder = Path.cwd() if is_remote(self._workdir.root) else Path(self._workdir.root).absolute()
        tracker = TRACKERS.class_of(self._kind, trust_code=True)()
        settings = json.loads(json.dumps(self._settings))
        self._id = tracker.start(TrackedRun(self._workdir.root.name, str(folder), settings, self._id))
        self._tracker = tracker
        self._note()

    def _note(self) -> None:
        self._noted = time.monotonic()
        write_json(self.path, {"id": self._id, "step": self._step})
