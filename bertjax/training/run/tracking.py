"""Pass metrics to trackers, each in its own thread: a hanging or failing tracker stops neither the run nor the logs."""

import collections
import importlib.util
import json
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertjax.runtime import storage
from bertjax.runtime.errors import UserError
from bertjax.runtime.storage import is_remote
from bertjax.training.run.trackers import TRACKERS, TrackedRun, Tracker
from bertjax.training.run.workdir import Workdir, read_json, write_json
from bertjax.training.run.writer import LogWriter

_MOST_WAITING = 20_000
_SECONDS_BETWEEN_NOTES = 10.0

log = logging.getLogger(__name__)


def check_trackers(kinds: Sequence[str]) -> None:
    """Raise UserError if a tracker is unknown or its package is not installed."""
    for kind in kinds:
        package = TRACKERS.class_of(kind, trust_code=True).package
        if package and importlib.util.find_spec(package) is None:
            raise UserError(f"runtime.trackers has {kind!r}, and {package} is not installed; pip install {package}")


class Tracking:
    """Passes steps to a tracker in its own thread. As a context manager, it completes the tracker's run on exit.

    `tracker-KIND.json` in the workdir holds the tracker's run id and the last step that it received. A resumed run
    continues under this id and passes no step twice. If it trains steps again on other rows (`runtime.skip_rows`), it
    begins a new run of the tracker, whose settings name the one before as `continues`.

    Args:
      kind: tracker name, as in `runtime.trackers`.
      workdir: workdir of the run.
      settings: configuration as plain dicts.
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
        # The writer's final flush then calls `write`, which completes the run in the tracker's thread.
        self._is_ending = True
        self._writer.__exit__(*error)

    def add(self, step: int, scalars: dict[str, float]) -> None:
        """Queue a step's finite scalars for the tracker."""
        self._waiting.append((step, {name: value for name, value in scalars.items() if math.isfinite(value)}))

    def write(self, everything: bool) -> None:
        """Pass queued steps; at the end, complete the tracker's run. Only the tracker's thread calls this."""
        if self._tracker is None:  # start lazily, in this thread: importing and connecting may take long or fail
            if not self._waiting:
                return
            self._start()
        while self._waiting:
            step, scalars = self._waiting[0]  # removed only after it was written: an error must not lose it
            if step > self._step:
                self._tracker.write(step, scalars)
                self._step = step
            if self._waiting[0][0] == step:  # otherwise a full queue dropped it while it was written
                self._waiting.popleft()
        # A kill loses at most ten seconds of notes; some steps are then sent twice.
        if everything or time.monotonic() - self._noted > _SECONDS_BETWEEN_NOTES:
            self._note()
        if self._is_ending:
            self._tracker.close()
            self._tracker = None

    def _start(self) -> None:
        if not self._id and storage.exists(self.path):
            note = read_json(self.path, "id", "step")
            self._id, self._step = note["id"], note["step"]  # continue the tracker's run of an earlier start
            if note.get("skip_rows", []) != self._skipped_before(note["step"]):
                log.info("%s: a new run, since steps are trained again on other rows", self.path.stem)
                self._settings |= {"continues": self._id}
                self._id, self._step = "", -1
        # Libraries of trackers need a local folder for their files.
        folder = Path.cwd() if is_remote(self._workdir.root) else Path(self._workdir.root).absolute()
        tracker = TRACKERS.class_of(self._kind, trust_code=True)()
        settings = json.loads(json.dumps(self._settings))
        self._id = tracker.start(TrackedRun(self._workdir.root.name, str(folder), settings, self._id))
        self._tracker = tracker
        self._note()

    def _note(self) -> None:
        self._noted = time.monotonic()
        skipped = self._skipped_before(self._step)
        write_json(self.path, {"id": self._id, "step": self._step, "skip_rows": skipped})

    def _skipped_before(self, step: int) -> list[list[int]]:
        return [list(steps) for steps in self._settings["runtime"]["skip_rows"] if steps[0] < step]
