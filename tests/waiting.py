"""Wait for what another thread or process does."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object]) -> None:
    """Return as soon as the condition holds. The limit only ends a hang: a busy machine needs a part of it."""
    end = time.perf_counter() + 300.0  # a clock that no test replaces
    while not condition():
        assert time.perf_counter() < end, "what is waited for does not come"
        time.sleep(0.01)
