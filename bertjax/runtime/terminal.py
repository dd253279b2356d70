"""The terminal of this process: stdin, stdout, stderr, and the signals of a terminal or a launcher.

A terminal that is gone, a pipe whose reader has left and a full disk under a log raise an error at whatever line
prints. They must not decide how a command ends, except for the stdout of a command whose result it is.
"""

import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

# They often reach a whole process group: Ctrl-C, a terminal that closes, systemd when a VM shuts down, Slurm.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A second SIGTERM within this time of the first is the same request.
_SAME_REQUEST_SECONDS = 5.0


def prepare_streams() -> None:
    """Open streams that the caller has closed (`>&-`) as empty ones, and let stdout escape what it cannot encode."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # `open` takes the lowest free descriptor, so no data file gets it
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))
            os.set_inheritable(getattr(sys, name).fileno(), True)
    if isinstance(sys.stdout, io.TextIOWrapper):  # that of stderr does so by default
        sys.stdout.reconfigure(errors="backslashreplace")


def silence(stream: Any) -> None:
    """Discard what is written to a stream's descriptor from now on, also what is in its buffer."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


class _Guarded:
    """A stream that is silenced at its first error instead of raising it."""

    def __init__(self, name: str):
        self._name, self._stream = name, getattr(sys, name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._attempt(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, action: Callable[..., Any], *arguments: str) -> None:
        try:
            action(*arguments)
        except OSError as error:
            silence(self._stream)
            other = sys.stderr if self._name == "stdout" else sys.stdout
            if isinstance(other, _Guarded):  # else it is the result of the command
                print(f"warning: {self._name} cannot be written and is closed: {error}", file=other, flush=True)


@contextlib.contextmanager
def guarded(name: str) -> Iterator[None]:
    """In this context, an error of `stdout` or `stderr` silences it and has no other effect."""
    stream, guard = getattr(sys, name), _Guarded(name)
    setattr(sys, name, guard)
    try:
        yield
    finally:
        guard.flush()
        setattr(sys, name, stream)


def write_error(line: bytes) -> None:
    """Write to stderr without its buffer, whose lock the interrupted line may hold."""
    with contextlib.suppress(OSError):
        os.write(2, line)


def heeds_hangup() -> bool:
    """Return whether SIGHUP concerns this process; nohup ignores it."""
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


def stop_signal() -> Callable[[], bool]:
    """Install the handlers and return a function that is True after the first SIGTERM, SIGHUP or Ctrl-C.

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
            write_error(b"\nstopping after this step; repeat the signal to leave without saving\n")
            return
        is_late = signum == signal.SIGTERM and now - first[0] > _SAME_REQUEST_SECONDS
        if is_late or (signum == signal.SIGINT and interrupts > 1):
            raise KeyboardInterrupt

    for signum in STOP_SIGNALS:
        if signum != signal.SIGHUP or heeds_hangup():
            signal.signal(signum, request_stop)
    return lambda: bool(first)
