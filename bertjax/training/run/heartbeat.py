"""`heartbeat.json`: what a run does, for `bertjax.status` and for launchers that end a run that hangs."""

import json
import math
import time
from typing import Literal

from etils import epath

from bertjax import storage

_SECONDS_BETWEEN_WRITES = 10.0

State = Literal[*"starting restoring compiling training evaluating saving exporting finished stopped failed".split()]


class Heartbeat:
    """The last sign of life of a run: {`step`, `time`, `state`, `steps`, `started`}, and how it has ended.

    `LogWriter` writes it every ten seconds. `time` is when the run reported last, not when the file was written: a run
    that hangs reports nothing. `started` is when this start began, by which a reader recognizes a file that an earlier
    start has left.

    Args:
      path: the JSON file.
      steps: number of steps of the run.
    """

    def __init__(self, path: epath.Path, steps: int = 0):
        self.path, self.steps = path, steps
        self._started = self._time = time.time()
        self._step, self._state = 0, "starting"
        self._end: dict[str, int | str] = {}
        self._written_time, self._due = 0.0, -math.inf

    def beat(self, step: int | None = None, state: State | None = None) -> None:
        """Report that the run is alive, the number of steps done, and what it does now; None for what is as before."""
        if step is not None:
            self._step = step
        if state is not None:
            self._state = state
        self._time = time.time()

    def end(self, exit_code: int, failure: str = "") -> None:
        """Add the exit code of this start to the file, and why it failed."""
        self._end = {"exit_code": exit_code} | ({"failure": failure} if failure else {})

    def write(self, everything: bool) -> None:
        """Write the file if ten seconds have passed and the run has reported since; `everything`: at once.

        Raises:
          StorageError: it cannot be written.
        """
        reported = self._time
        if reported == self._written_time or not (everything or time.monotonic() > self._due):
            return
        self._due = time.monotonic() + _SECONDS_BETWEEN_WRITES
        record = {"step": self._step, "time": reported, "state": self._state, "steps": self.steps}
        record |= {"started": self._started, **self._end}
        storage.write_text(self.path, json.dumps(record) + "\n")
        self._written_time = reported
