"""Two watchers of a run: one for steps that do not come, one for losses that jump."""

import collections
import contextlib
import faulthandler
import logging
import math
import statistics
import sys
import threading
import time
from collections.abc import Iterator

# A hiccup of a step that takes milliseconds is no hang.
_LEAST_SECONDS = 30.0
_FACTOR = 20.0
_KNOWN_STEPS = 5

log = logging.getLogger(__name__)


class Watchdog:
    """Says so, and shows the stacks of all threads, where a step takes 20 times as long as the median one.

    Args:
      least: seconds that a step may take in any case.
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
        """A step is done."""
        now = time.monotonic()
        if self._since is not None:
            self._durations.append(now - self._since)
        self._since = now

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """While something else than steps takes its time."""
        self._since = None
        try:
            yield
        finally:
            self._since = time.monotonic()

    def _watch(self) -> None:
        told = None
        while not self._ended.wait(self._least / 10):
            since = self._since
            if since is None or since == told or len(self._durations) < _KNOWN_STEPS:
                continue
            median, waited = statistics.median(list(self._durations)), time.monotonic() - since
            if waited > max(_FACTOR * median, self._least):
                told = since
                log.warning("a step has taken %.0f s so far, the median is %.3f s; all stacks follow", waited, median)
                faulthandler.dump_traceback(sys.__stderr__)


class Spikes:
    """Tells where a loss lies far above its running mean.

    Args:
      deviations: how far is far.
      horizon: steps over which mean and deviation are taken, with exponential weights; no step before it is judged.
    """

    def __init__(self, deviations: float = 6.0, horizon: int = 100):
        self._deviations, self._horizon = deviations, horizon
        self._means: dict[str, tuple[int, float, float]] = {}

    def judge(self, losses: dict[str, float]) -> dict[str, tuple[float, float]]:
        """{name: (loss, deviations above the mean)} of those that jump, or are not finite.

        A jump is averaged in as if it went no further than is allowed: one hardly moves the mean, a new level does.
        """
        found = {}
        for name, loss in ((name, float(loss)) for name, loss in losses.items()):
            steps, mean, variance = self._means.get(name, (0, loss, 0.0))
            deviation = max(variance, 1e-12) ** 0.5
            above = (loss - mean) / deviation
            if steps >= self._horizon and not above <= self._deviations:
                found[name] = (loss, above)
            if not math.isfinite(loss):
                continue
            share = max(1.0 / self._horizon, 1.0 / (steps + 1))
            change = self._deviations * deviation if name in found else loss - mean
            variance = (1.0 - share) * (variance + share * change**2)
            self._means[name] = (steps + 1, mean + share * change, variance)
        return found
