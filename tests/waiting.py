"""Waiting for other threads and processes, and a clock that a test sets: no result depends on how fast a machine is."""

import atexit
import os
import subprocess
import time
from collections.abc import Callable

PATIENCE = float(os.environ.get("BERTJAX_TEST_PATIENCE", "1"))
# Ends a hang, and nothing else: no test passes because this time has passed. BERTJAX_TEST_PATIENCE multiplies it.
LIMIT_SECONDS = 900.0 * PATIENCE


def wait_until(condition: Callable[[], object], process: subprocess.Popen | None = None) -> None:
    """Return as soon as the condition holds.

    Args:
      process: a process that the condition waits for; fail at once if it has ended and the condition does not hold.
    """
    end = time.perf_counter() + LIMIT_SECONDS  # a clock that no test replaces
    while not condition():
        has_ended = process is not None and process.poll() is not None
        if has_ended and not condition():  # it may hold since the process has ended
            raise AssertionError(f"{process.args} ended with code {process.returncode}: {_errors_of(process)}")
        assert time.perf_counter() < end, "the condition did not become true"
        time.sleep(0.01)


def kill_at_exit(process: subprocess.Popen) -> subprocess.Popen:
    """Return a process that may never end by itself, and that a test which fails would leave behind."""
    atexit.register(process.kill)
    return process


def _errors_of(process: subprocess.Popen) -> str:
    return process.communicate()[1] if process.stderr else ""


class Clock:
    """Takes the place of the module `time` in one module, so no other thread reads it; a test sets the time.

    Attributes:
      now: what all clocks return, in seconds.
      slept: the seconds of every call of `sleep`.
      while_asleep: called by `sleep` with the seconds; by default, nothing happens meanwhile.
    """

    def __init__(self, now: float = 1000.0, while_asleep: Callable[[float], object] = lambda seconds: None):
        self.now, self.while_asleep = now, while_asleep
        self.slept: list[float] = []

    def time(self) -> float:
        return self.now

    monotonic = perf_counter = time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.while_asleep(seconds)
