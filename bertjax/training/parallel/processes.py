"""Several processes that train one run: how they start, agree with each other, and end.

Every process runs the same program on the same steps. Only process 0, the writer, writes and prints. An action that may
fail in one process runs through `together`, so that no process waits for one that has ended.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
from jax._src.distributed import global_state
from jax.experimental import multihost_utils

from bertjax import cli, errors
from bertjax.errors import RunFailed, Unexplained, UserError

T = TypeVar("T")

# The preparation of a corpus may take hours. The heartbeat detects processes that die meanwhile.
_PATIENCE_MILLISECONDS = 7 * 24 * 3600 * 1000
# The last two are bertjax's own, for clusters that JAX does not detect.
_COORDINATOR, _PROCESSES, _PROCESS = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"

# Messages of Gloo, which computes between CPUs, and of the coordination service.
_SIGNS_OF_A_LOST_PEER = ("Gloo", "Barrier failed", "heartbeat timeout", "UNAVAILABLE")

_gathered = 0
# The key under which this process stored its last value.
_stored = ""
# Whether every process knows of the same failure, or has agreed to stop.
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
    """Connect to the other processes of the run; call it before anything computes.

    Args:
      heartbeat_timeout: seconds without a heartbeat after which a process counts as dead and the others end.

    Raises:
      Unexplained: the processes cannot find each other.
      UserError: their variables of the environment are incomplete.
    """
    explicit = {}
    if _PROCESSES in os.environ or _PROCESS in os.environ:
        missing = [name for name in (_COORDINATOR, _PROCESSES, _PROCESS) if name not in os.environ]
        if missing:
            raise UserError(f"{_PROCESSES} and {_PROCESS} need {' and '.join(missing)}; set all three, or none")
        explicit = {
            "num_processes": _count(_PROCESSES),
            "process_id": _count(_PROCESS),
            "cluster_detection_method": "deactivate",
        }
    try:
        jax.distributed.initialize(
            heartbeat_timeout_seconds=heartbeat_timeout, shutdown_timeout_seconds=heartbeat_timeout, **explicit
        )
    except (ValueError, RuntimeError) as error:
        raise Unexplained(
            f"--distributed finds no other processes ({str(error).splitlines()[0]}); run it where JAX detects them "
            f"(TPU VM, GKE, Slurm, Open MPI), or set {_COORDINATOR}, {_PROCESSES} and {_PROCESS}"
        ) from error


def _count(name: str) -> int:
    value = os.environ[name]
    if not value.isdecimal():
        raise UserError(f"{name}={value!r} must be a number")
    return int(value)


def is_writer() -> bool:
    """Return whether this process writes and prints."""
    return jax.process_index() == 0


def check_started() -> None:
    """Raise UserError if several processes compute together without `start`."""
    if jax.process_count() > 1 and global_state.client is None:
        raise UserError(f"{jax.process_count()} processes compute together without coordination; add --distributed")


def gather(value: Any, purpose: str) -> list[Any]:
    """Return the values of all processes in order, as JSON, through the coordination service.

    Args:
      value: what this process contributes.
      purpose: what the value is, such as `restore-30`; all processes must gather for the same purpose.

    Raises:
      RunFailed: another process gathers for another purpose, as it is at another step.
    """
    global _gathered, _stored
    if jax.process_count() == 1:
        return [value]
    _gathered += 1
    client, folder, before = global_state.client, f"bertjax/{_gathered}/", _stored
    _stored = f"{folder}{jax.process_index():08d}/{purpose}"
    client.key_value_set(_stored, json.dumps(value))
    client.wait_at_barrier(f"bertjax-{_gathered}", _PATIENCE_MILLISECONDS)
    if before:  # every process has read it, or it would not be at this barrier
        client.key_value_delete(before)
    values = sorted(client.key_value_dir_get(folder))
    for other, (name, _) in enumerate(values):
        if name.rpartition("/")[2] != purpose:
            _end_together()
            raise RunFailed(
                f"process {other} is at {name.rpartition('/')[2]} and this one at {purpose}; run the same command "
                "again in all processes"
            )
    return [json.loads(text) for _, text in values]


def attempt(action: Callable[[], T], purpose: str) -> tuple[T | None, list[UserError | None]]:
    """Run an action in every process; return its result in this one, and the error of each, None if it has none.

    Args:
      action: raises a UserError or an OSError if it fails.
      purpose: what the action does, see `gather`.

    Raises:
      Exception: the action raised another error here, a defect; the other processes see a `RunFailed`.
    """
    result, own, failure = None, None, None
    try:
        result = action()
    except Exception as error:  # whatever it is, the others must not wait for this process
        own, failure = error, [_class_of(error).__name__, str(error) or type(error).__name__]
    failures = [_error_of(index, failure) for index, failure in enumerate(gather(failure, purpose))]
    if isinstance(own, UserError):
        failures[jax.process_index()] = own
    elif own is not None and not isinstance(own, OSError):
        _end_together()
        raise own
    return result, failures


def together(action: Callable[[], T], purpose: str = "action") -> T:
    """Run an action in every process and return its result in this one; if it fails in one process, all of them raise.

    Args:
      action: what to run.
      purpose: what the action does, see `gather`.

    Raises:
      UserError: the action raised a UserError or an OSError here, or any error in another process; it has the class
        of the error of the first process that failed.
      Exception: the action raised another error here.
    """
    if jax.process_count() == 1:
        return action()
    result, failures = attempt(action, purpose)
    raise_first(failures)
    return result


def raise_first(failures: Sequence[UserError | None]) -> None:
    """Raise the first error of a list that is the same in every process, if it has one."""
    for failure in failures:
        if failure is not None:
            _end_together()
            raise failure


def on_writer(action: Callable[[], Any], purpose: str = "writing") -> None:
    """Run an action only in process 0 while the others wait; if it fails, all of them raise.

    Raises:
      UserError: the action raised a UserError or an OSError.
    """
    together(action if is_writer() else lambda: None, purpose)


def from_writer(action: Callable[[], T], purpose: str) -> T:
    """Run an action only in process 0, and return its result, which must be JSON, in all processes.

    Raises:
      UserError: the action raised a UserError or an OSError.
    """
    value = together(action if is_writer() else lambda: None, purpose)
    return gather(value, f"{purpose}-result")[0]


def _class_of(error: Exception) -> type[UserError]:
    """Return the class of bertjax.errors that an error has, or that has its exit code."""
    kind = getattr(errors, type(error).__name__, None)
    return kind if type(error) is kind else type(cli.error_of(cli.code_for(error), ""))


def _error_of(index: int, failure: list[str] | None) -> UserError | None:
    if failure is None:
        return None
    kind, message = failure
    return getattr(errors, kind)(message if index == 0 else f"process {index}: {message}")


def _end_together() -> None:
    global _all_fail
    _all_fail = True


class StopTogether:
    """Returns whether to stop. Every process calls it between chunks, and all get the same answer at the same chunk.

    SIGTERM or Ctrl-C in one process stops all of them; JAX finds the next chunk that no process has passed yet.

    JAX has one counter for all callers in a process, and agrees once. So nothing else may ask it: Orbax would, with the
    training step, at each save. With the signal in between, a run that has resumed at step 500,000 would stop 500,000
    chunks later.
    """

    def __init__(self):
        self._edges = 0
        signal.signal(signal.SIGINT, self._interrupted)
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
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGTERM)


def leave(run: Callable[[], int]) -> int:
    """Return the exit code of `run`, after leaving the other processes.

    All processes end together if the run went well, if they have agreed to stop, or if all of them know that it cannot
    start. A process that fails alone ends at once, also with exit code 75, if it has lost the lock. The others may wait
    for it in the middle of a step, or complete a save, and JAX aborts a process that waits for them too long.
    """
    try:
        exit_code = run()
    except Exception:
        if global_state.client is None:
            raise
        traceback.print_exc()
        exit_code = cli.FAILED
    if global_state.client is not None:
        if exit_code == cli.FINISHED or (exit_code == cli.STOPPED and _all_stop) or _all_fail:
            jax.distributed.shutdown()
        else:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(exit_code)
    return exit_code


@contextlib.contextmanager
def noticing_lost_peers() -> Iterator[None]:
    """Turn errors of computations and of the coordination service that follow the end of another process into one line.

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
