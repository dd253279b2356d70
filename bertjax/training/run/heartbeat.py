"""`heartbeat.json`: the state of a run, for `bertjax status` and for launchers that restart hanging runs."""

import json
import math
import time
from typing import Literal

from etils import epath

from bertjax.runtime import storage

_SECONDS_BETWEEN_WRITES = 10.0

State = Literal[
    "starting",
    "restoring",
    "compiling",
    "training",
    "evaluating",
    "saving",
    "exporting",
    "finished",
    "stopped",
    "failed",
]


class Heartbeat:
    """A run's last sign of life, {`step`, `time`, `state`, `steps`, `started`}, and its end.

    `LogWriter` writes it every ten seconds. `time` is when the run last reported, not when the file was written: a
    hanging run stops reporting, but its writer thread still writes. Readers recognize a file from an earlier start by
    `started`.

    Args:
      path: JSON file.
      steps: steps in the whole run.
    """

    def __init__(self, path: epath.Path, steps: int = 0):
        self.path, self.steps = path, steps
        self._started = self._time = time.time()
        self._step, self._state = 0, "starting"
        self._end: dict[str, int | str] = {}
        self._written_time, self._due = 0.0, -math.inf

    def beat(self, step: int | None = None, state: State | None = None) -> None:
        """Report a sign of life, with the steps done and the current state; None keeps the previous value."""
        if step is not None:
            self._step = step
        if state is not None:
            self._state = state
        self._time = time.time()

    def end(self, exit_code: int, failure: str = "") -> None:
        """Record this start's exit code and why it failed."""
        self._end = {"exit_code": exit_code} | ({"failure": failure} if failure else {})

    def write(self, everything: bool) -> None:
        """Write the file if the run has reported and ten seconds have passed; with `everything`, without the delay.

        Raises:
          StorageError: it cannot be written.
        """
        # The training thread may report while this one writes: take the time once, and compare with it next time.
        reported = self._time
        if reported == self._written_time or not (everything or time.monotonic() > self._due):
            return
        self._due = time.monotonic() + _SECONDS_BETWEEN_WRITES
        record = {"step": self._step, "time": reported, "state": self._state, "steps": self.steps}
        record |= {"started": self._started, **self._end}
        storage.write_text(self.path, json.dumps(record) + "\n")
        self._written_time = reported
