"""Coordinate the processes of a run: start them, agree on values and failures, and end together.

Every process runs the same program on the same steps. Only process 0, the writer, writes and prints. An action that may
fail in one process runs through `together`, so that no process waits for one that has ended.
"""

import argparse
import contextlib
import functools
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax

# Private: JAX has no public access to its coordination service.
from jax._src.distributed import global_state
from jax.experimental import multihost_utils

from bertjax.runtime import command_line, errors
from bertjax.runtime.errors import RunFailed, Unexplained, UserError, reason

T = TypeVar("T")

# Preparing a corpus may take days, so barriers wait long. JAX's heartbeat detects processes that die in the meantime.
_PATIENCE_MILLISECONDS = 7 * 24 * 3600 * 1000
# The last two are bertjax's own, for clusters that JAX does not detect.
_COORDINATOR, _PROCESSES, _PROCESS = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"

# Messages of Gloo, the library for collectives between CPUs, and of JAX's coordination service.
_SIGNS_OF_A_LOST_PEER = ("Gloo", "Barrier failed", "heartbeat timeout", "UNAVAILABLE")

# Number of exchanges so far, equal in all processes. It is part of each key and barrier, which must be unique.
_gathered = 0
# Key under which this process stored its last value.
_stored = ""
# Whether all processes know of the same failure, or have agreed to stop; `leave` then ends them together.
_all_fail = _all_stop = False


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --distributed."""
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="train with all processes that run this command; on TPU VM, GKE, Slurm and Open MPI they find each other, "
        f"elsewhere set {_COORDINATOR} (host:port of process 0), {_PROCESSES} and {_PROCESS}",
    )


def start(heartbeat_timeout: int) -> None:
    """Connect to the other processes of the run. Call it before anything computes.

    Args:
      heartbeat_timeout: seconds without a heartbeat after which a process counts as dead and the others end.

    Raises:
      Unexplained: the processes cannot find each other.
      UserError: only some of the environment variables are set.
    """
    # JAX finds the processes on TPU VMs, GKE, Slurm and Open MPI; elsewhere the user sets all three variables.
    numbers = {"num_processes": os.environ.get(_PROCESSES), "process_id": os.environ.get(_PROCESS)}
    is_given = any(numbers.values())
    missing = [name for name in (_COORDINATOR, _PROCESSES, _PROCESS) if name not in os.environ]
    if is_given and missing:
        raise UserError(f"{_PROCESSES} and {_PROCESS} need {' and '.join(missing)}; set all three, or none")
    for name in (_PROCESSES, _PROCESS):
        if not (os.environ.get(name) or "0").isdecimal():
            raise UserError(f"{name}={os.environ[name]!r} must be a number")
    try:
        explicit: dict[str, Any] = {name: int(text) for name, text in numbers.items() if text}
        if is_given:  # the variables are complete, so JAX must not look for a cluster
            explicit["cluster_detection_method"] = "deactivate"
        jax.distributed.initialize(
            heartbeat_timeout_seconds=heartbeat_timeout, shutdown_timeout_seconds=heartbeat_timeout, **explicit
        )
    except (ValueError, RuntimeError) as error:
        raise Unexplained(
            f"--distributed finds no other processes ({reason(error)}); run it where JAX detects them "
            f"(TPU VM, GKE, Slurm, Open MPI), or set {_COORDINATOR}, {_PROCESSES} and {_PROCESS}"
        ) from error


def is_writer() -> bool:
    """Return whether this process writes and prints."""
    return jax.process_index() == 0


def check_started() -> None:
    """Raise UserError if several processes compute together without `start`."""
    if jax.process_count() > 1 and global_state.client is None:
        raise UserError(f"{jax.process_count()} processes compute together without coordination; add --distributed")


def gather(value: Any, purpose: str) -> list[Any]:
    """Return the values of all processes in order, sent as JSON through JAX's coordination service.

    Args:
      value: this process's value.
      purpose: name of the exchange, such as `restore-30`; it must be the same in all processes.

    Raises:
      RunFailed: another process gathers for another purpose, because it is at another step.
    """
    global _gathered, _stored
    if jax.process_count() == 1:
        return [value]
    # The coordination service, not a device collective: a process whose devices have failed can still report it.
    _gathered += 1
    client, folder, before = global_state.client, f"bertjax/{_gathered}/", _stored
    _stored = f"{folder}{jax.process_index():08d}/{purpose}"
    client.key_value_set(_stored, json.dumps(value))
    # After the barrier all values are stored, so that one read returns all of them.
    client.wait_at_barrier(f"bertjax-{_gathered}", _PATIENCE_MILLISECONDS)
    if before:  # every process has read the last value, or it would not have reached this barrier
        client.key_value_delete(before)
    # Keys contain the process number with leading zeros: text order is process order.
    values = sorted(client.key_value_dir_get(folder))
    for other, (name, _) in enumerate(values):
        if name.rpartition("/")[2] != purpose:
            # Every process sees both purposes, so all of them raise.
            _end_together()
            raise RunFailed(
                f"process {other} is at {name.rpartition('/')[2]} and this one at {purpose}; run the same command "
                "again in all processes"
            )
    return [json.loads(text) for _, text in values]


def attempt(action: Callable[[], T], purpose: str) -> tuple[T | None, list[UserError | None]]:
    """Run an action in every process; return its result here, and each process's error or None.

    Args:
      action: raises UserError or OSError if it fails.
      purpose: name of the exchange, see `gather`.

    Raises:
      Exception: the action raised another error here, which is a bug; the other processes see a `RunFailed`.
    """
    result, own, failure = None, None, None
    try:
        result = action()
    except Exception as error:  # whatever it is, the others must not wait for this process
        own, failure = error, [_class_of(error).__name__, str(error) or type(error).__name__]
    failures: list[UserError | None] = []
    for index, known in enumerate(gather(failure, purpose)):
        place = f"process {index}: " if index else ""
        failures.append(known and getattr(errors, known[0])(f"{place}{known[1]}"))
    # Here the original error is at hand, with its traceback; other processes see a copy of its message.
    if isinstance(own, UserError):
        failures[jax.process_index()] = own
    # Storage fails in ordinary ways, and its error stays in the list; any other error is a bug.
    elif own is not None and not isinstance(own, OSError):
        # Every process has gathered this failure, so that none waits for another.
        _end_together()
        raise own
    return result, failures


def together(action: Callable[..., T], *arguments: Any, purpose: str = "action") -> T:
    """Run an action in every process and return its result here; if it fails in any process, all of them raise.

    Args:
      action: called with the arguments; raises UserError or OSError if it fails.
      purpose: name of the exchange, see `gather`.

    Raises:
      UserError: the action raised UserError or OSError here, or any error in another process. Its class is that of the
        first failed process.
      Exception: the action raised another error here.
    """
    if jax.process_count() == 1:
        return action(*arguments)
    result, failures = attempt(functools.partial(action, *arguments), purpose)
    raise_first(failures)
    return result


def raise_first(failures: Sequence[UserError | None]) -> None:
    """Raise the first error in a list, if there is one; the list must be the same in every process."""
    for failure in failures:
        if failure is not None:
            _end_together()
            raise failure


def on_writer(action: Callable[[], Any], purpose: str = "writing") -> Any:
    """Run an action only in process 0 while the others wait, and return its result there; if it fails, all raise.

    Raises:
      UserError: the action raised a UserError or an OSError.
    """
    return together(action if is_writer() else lambda: None, purpose=purpose)


def from_writer(action: Callable[[], T], purpose: str) -> T:
    """Run an action only in process 0, and return its JSON result in all processes.

    Raises:
      UserError: the action raised a UserError or an OSError.
    """
    return gather(on_writer(action, purpose), f"{purpose}-result")[0]


def _class_of(error: Exception) -> type[UserError]:
    """Return an error's class if it is one of bertjax.runtime.errors, else the class with the same exit code."""
    kind = getattr(errors, type(error).__name__, None)
    return kind if type(error) is kind else type(command_line.error_of(command_line.code_for(error), ""))


def _end_together() -> None:
    global _all_fail
    _all_fail = True


class StopTogether:
    """Returns whether to stop. Every process calls it between chunks, and all stop after the same chunk.

    SIGTERM, SIGHUP or Ctrl-C in one process stops all of them: JAX finds the next chunk that no process has passed yet.

    JAX keeps one counter per process for all callers and agrees only once, so nothing else may call it. Orbax would,
    with the training step, at each save (`checkpoint._Manager` prevents this). If the signal came in between, a run
    resumed at step 500,000 would stop 500,000 chunks later.
    """

    def __init__(self):
        self._edges = 0
        signal.signal(signal.SIGINT, self._interrupted)
        if command_line.heeds_hangup():
            signal.signal(signal.SIGHUP, self._hung_up)
        self._interrupts = 0

    def __call__(self) -> bool:
        global _all_stop
        self._edges += 1  # not the step: JAX's sync point is the next number that no process has passed
        must_stop = multihost_utils.reached_preemption_sync_point(self._edges)
        _all_stop = _all_stop or must_stop
        return must_stop

    def _interrupted(self, signum: int, frame: Any) -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            # A second Ctrl-C: the user does not want to wait for the end of the chunk.
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGTERM)  # JAX's notifier handles SIGTERM only

    def _hung_up(self, signum: int, frame: Any) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # shell and terminal may both send one
        os.kill(os.getpid(), signal.SIGTERM)


def leave(run: Callable[[], int]) -> int:
    """Run an entry point, leave the other processes, and return the exit code.

    All processes end together if the run finished, if they agreed to stop, or if all know that it cannot start. A
    process that fails alone, or has lost the lock (exit code 75), exits at once: the others may wait for it in the
    middle of a step or complete a save, and JAX aborts a process that waits for them too long.
    """
    try:
        exit_code = run()
    except Exception:
        # A single process leaves no others behind: the caller handles the error.
        if global_state.client is None:
            raise
        with command_line.guarded("stderr"):
            traceback.print_exc()
        exit_code = command_line.FAILED
    if global_state.client is not None:
        # `os._exit` skips JAX's shutdown barrier, at which this process would wait for peers that never come.
        if exit_code == command_line.FINISHED or (exit_code == command_line.STOPPED and _all_stop) or _all_fail:
            jax.distributed.shutdown()
        else:
            # `os._exit` does not flush Python's buffers.
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(exit_code)
    return exit_code


@contextlib.contextmanager
def noticing_lost_peers() -> Iterator[None]:
    """Turn errors that follow from the end of another process into one line.

    Raises:
      RunFailed: another process has ended.
    """
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if jax.process_count() > 1 and any(sign in str(error) for sign in _SIGNS_OF_A_LOST_PEER):
            raise RunFailed(
                f"another process of the run has ended ({str(error).splitlines()[0][:200]}); run the same command "
                "again in all processes, to resume from the newest checkpoint"
            ) from error
        raise
