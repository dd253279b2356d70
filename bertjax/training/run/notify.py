"""Run a user's command on training events, without ever blocking or failing the run."""

import contextlib
import json
import logging
import math
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Literal

from bertjax.runtime import storage
from bertjax.runtime.errors import Busy, RunFailed, Unavailable, UserError

# Events that may occur at every step. One call per minute is enough to alert someone.
_REPEATED = ("stalled", "spike", "diverged")
_SECONDS_BETWEEN_REPEATED = 60.0
# A slower command is killed.
_COMMAND_SECONDS = 60.0
# The process waits this long at its end for queued events, such as `finished`.
_CLOSING_SECONDS = 10.0
_WAITING_EVENTS = 100

log = logging.getLogger(__name__)


def end_of(error: BaseException) -> Literal["stopped", "failed"]:
    """Return the event for a run that ends with an error: `stopped` if the same command can continue it later."""
    return "stopped" if isinstance(error, KeyboardInterrupt) or storage.may_pass(error) else "failed"


def parsed(command: str) -> list[str]:
    """Return the words of --on-event; raise UserError if it has an unclosed quote."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UserError(f"--on-event={command} cannot be read ({error}); quote it as for a shell") from error


def is_refusal(error: BaseException) -> bool:
    """Return whether a start ends so without having touched the run: by bad input, or since another process has it."""
    return isinstance(error, Busy) or isinstance(error, UserError) and not isinstance(error, RunFailed | Unavailable)


class Notifier:
    """Runs a command for each event, one at a time, in its own thread.

    The command gets the event as JSON on stdin, {`event`, `step`, `workdir`, `time`, details}, and in the environment
    variables BERTJAX_EVENT, BERTJAX_STEP and BERTJAX_WORKDIR. Its output goes to stderr. If the command is too slow,
    events are dropped with a warning.

    Args:
      command: program and arguments in shell syntax, without shell operators; empty to do nothing.
      workdir: workdir of the run.

    Raises:
      UserError: the command has an unclosed quote.
    """

    def __init__(self, command: str, workdir: str):
        self._command, self._workdir = parsed(command), workdir
        self._step, self._warned = 0, False
        self._sent: dict[str, float] = {}
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue(_WAITING_EVENTS)
        self._running: subprocess.Popen | None = None
        self._thread = threading.Thread(target=self._work, name="on-event", daemon=True)
        if self._command:
            self._thread.start()

    def __call__(self, event: str, step: int | None = None, **details: Any) -> None:
        """Queue an event and return at once; without a step, it gets the step of the previous event."""
        self._step, now = self._step if step is None else step, time.monotonic()
        # Limited per kind of event: a spike must not hide a stalled run.
        is_repeated = event in _REPEATED and now < self._sent.get(event, -math.inf) + _SECONDS_BETWEEN_REPEATED
        if not self._command or is_repeated:
            return
        self._sent[event] = now
        record = {"event": event, "step": self._step, "workdir": self._workdir, "time": time.time(), **details}
        # Never wait for room in the queue: the caller is the training loop or the watchdog.
        try:
            self._events.put_nowait(record)
        except queue.Full:
            self._warn(f"it has not handled the last {_WAITING_EVENTS} events; the event {event} is dropped")

    def close(self) -> None:
        """Wait until the command has handled all events, at most ten seconds, then kill it."""
        if not self._command:
            return
        with contextlib.suppress(queue.Full):
            self._events.put_nowait(None)  # ends the thread after the events before it
        self._thread.join(_CLOSING_SECONDS)
        if self._thread.is_alive():
            self._warn(f"it has not ended after {_CLOSING_SECONDS:.0f} s; it is killed")
            self._command = []
            self._kill()

    def _work(self) -> None:
        while (record := self._events.get()) is not None and (command := self._command):
            try:
                self._run(command, record)
            except Exception as error:  # no error of the command may stop a run
                self._warn(str(error))

    def _run(self, command: list[str], record: dict[str, Any]) -> None:
        variables = {f"BERTJAX_{name.upper()}": str(record[name]) for name in ("event", "step", "workdir")}
        # In its own session, Ctrl-C does not reach it, and its children can be killed together with it.
        self._running = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=sys.__stderr__, env=os.environ | variables, start_new_session=True
        )
        try:
            self._running.communicate(json.dumps(record, ensure_ascii=False).encode(), timeout=_COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            self._running.wait()
            self._warn(f"it was killed after {_COMMAND_SECONDS:.0f} s, at the event {record['event']}")
        else:
            if code := self._running.returncode:
                self._warn(f"it ended with exit code {code} at the event {record['event']}")

    def _kill(self) -> None:
        if self._running is not None and self._running.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self._running.pid, signal.SIGKILL)

    def _warn(self, problem: str) -> None:
        """Log the first failure only; later ones would repeat it."""
        if not self._warned:
            self._warned = True
            log.warning("--on-event: %s; the run continues", problem)
