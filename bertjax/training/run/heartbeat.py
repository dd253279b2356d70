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
    """The last sign of life of a run: {`step`, `time`, `state`, `steps`}. `LogWriter` writes it every ten seconds.

    `time` is when the run reported last, not when the file was written: a run that hangs reports nothing.

    Args:
      path: the JSON file.
      steps: number of steps of the run.

    Attributes:
      failure: why the run failed, which is then in the file as well; empty if it has not.
    """

    def __init__(self, path: epath.Path, steps: int = 0):
        self.path, self.steps, self.failure = path, steps, ""
        self._step, self._state, self._time = 0, "starting", time.time()
        self._written_time, self._due = 0.0, -math.inf

    def beat(self, step: int | None = None, state: State | None = None) -> None:
        """Report that the run is alive, the number of steps done, and what it does now; None for what is as before."""
        if step is not None:
            self._step = step
        if state is not None:
            self._state = state
        self._time = time.time()

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
        if self.failure:
            record["failure"] = self.failure
        storage.write_text(self.path, json.dumps(record) + "\n")
        self._written_time = reported
