"""A clock for watchdogs; without pytest, which takes longer to import than the processes run that use it."""

import threading

from tests.waiting import Clock, wait_until


class WatchedClock(Clock):
    """A clock that knows how often the watchdog has read it, which it does once a tick."""

    reads = 0

    def monotonic(self) -> float:
        self.reads += threading.current_thread().name == "watchdog"
        return self.now

    def wait(self, seconds: float) -> None:
        """Let time pass, and the watchdog see it: at its second tick from now on, the first is complete."""
        self.now += seconds
        reads = self.reads
        wait_until(lambda: self.reads >= reads + 2)
