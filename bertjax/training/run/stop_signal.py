"""Signal handlers that stop a run: SIGTERM and Ctrl-C."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

# A second SIGTERM within this time of the first is the same request.
_SAME_REQUEST_SECONDS = 5.0


def stop_signal() -> Callable[[], bool]:
    """Install the handlers and return a function that is True after the first SIGTERM or Ctrl-C.

    A second Ctrl-C ends the process at once. So does a SIGTERM more than five seconds after the first signal. An
    earlier one counts as the same request, because shells and process groups often deliver a signal twice.
    """
    first: list[float] = []
    interrupts = 0

    def request_stop(signum: int, frame: Any) -> None:
        nonlocal interrupts
        now = time.monotonic()
        interrupts += signum == signal.SIGINT
        if not first:
            first.append(now)
            # Not `print`: the signal may have interrupted one, which holds the lock of the buffer.
            os.write(2, b"\nstopping after this step; repeat the signal to leave without saving\n")
            return
        is_meant = interrupts > 1 if signum == signal.SIGINT else now - first[0] > _SAME_REQUEST_SECONDS
        if is_meant:
            raise KeyboardInterrupt

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, request_stop)
    return lambda: bool(first)
