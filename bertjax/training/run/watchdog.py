"""A thread that notices when a step hangs."""

import collections
import contextlib
import faulthandler
import logging
import statistics
import sys
import threading
import time
from collections.abc import Iterator

# A step that takes milliseconds may be late by seconds without being stuck.
_LEAST_SECONDS = 30.0
_FACTOR = 20.0
_KNOWN_STEPS = 5

log = logging.getLogger(__name__)


class Watchdog:
    """Logs a warning and the stacks of all threads when a step takes 20 times as long as the median step.

    Args:
      least: seconds after which a step counts as late at the earliest.
    """

    def __init__(self, least: float = _LEAST_SECONDS):
        self._least = least
        self._durations: collections.deque[float] = collections.deque(maxlen=101)
        self._since: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        self._thread.join()

    def beat(self) -> None:
        """Note that a step is done."""
        now = time.monotonic()
        if self._since is not None:
            self._durations.append(now - self._since)
        self._since = now

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time that is spent in this context."""
        self._since = None
        try:
            yield
        finally:
            self._since = time.monotonic()

    def _watch(self) -> None:
        reported = None
        while not self._ended.wait(self._least / 10):
            since = self._since
            if since is None or since == reported or len(self._durations) < _KNOWN_STEPS:
                continue
            median, waited = statistics.median(list(self._durations)), time.monotonic() - since
            if waited > max(_FACTOR * median, self._least):
                reported = since
                log.warning("a step has taken %.0f s so far, the median is %.3f s; all stacks follow", waited, median)
                faulthandler.dump_traceback(sys.__stderr__)
