"""Many processes that train one run: how they start, agree with each other, and end.

Every process runs the same program on the same steps. What only one may do (write, print) falls to process 0; what any
of them may fail at goes through `together`, so that none waits for a process that has gone.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
from jax._src.distributed import global_state
from jax.experimental import multihost_utils

from bertjax import cli
from bertjax.errors import RunFailed, UserError

T = TypeVar("T")

# A corpus may take hours to prepare. Who dies meanwhile is noticed by its heartbeat.
_PATIENCE_MILLISECONDS = 7 * 24 * 3600 * 1000
# The last two are bertjax's own, for machines that no detector of JAX knows.
_COORDINATOR, _PROCESSES, _PROCESS = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"

# Of Gloo, which computes between CPUs, and of the service in which the processes agree.
_SIGNS_OF_A_LOST_PEER = ("Gloo", "Barrier failed", "heartbeat timeout", "UNAVAILABLE")

_gathered = 0
# Whether every process has been told of the same failure.
_all_end = False


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --distributed."""
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="train with all processes that run this command: on TPU VM, GKE, Slurm and Open MPI they find each other; "
        f"elsewhere set {_COORDINATOR} (host:port of process 0), {_PROCESSES} and {_PROCESS}",
    )


def start(heartbeat_timeout: int) -> None:
    """Joins the processes of the run; call it before anything computes.

    Args:
      heartbeat_timeout: seconds after which a silent process counts as dead and the others end.

    Raises:
      UserError: the processes cannot find each other.
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
        raise UserError(
            f"--distributed finds no other processes ({str(error).splitlines()[0]}); run it where JAX detects them "
            f"(TPU VM, GKE, Slurm, Open MPI), or set {_COORDINATOR}, {_PROCESSES} and {_PROCESS}"
        ) from error


def _count(name: str) -> int:
    value = os.environ[name]
    if not value.isdecimal():
        raise UserError(f"{name}={value!r} must be a number")
    return int(value)


def is_writer() -> bool:
    """Whether this process writes and prints."""
    return jax.process_index() == 0


def check_started() -> None:
    """Raises UserError where several processes compute together and cannot talk about anything else."""
    if jax.process_count() > 1 and global_state.client is None:
        raise UserError(f"{jax.process_count()} processes take part and do not know of each other; add --distributed")


def gather(value: Any) -> list[Any]:
    """Plain JSON of every process, in their order. They meet in the coordination service, where waiting is cheap."""
    global _gathered
    if jax.process_count() == 1:
        return [value]
    _gathered += 1
    client, place = global_state.client, f"bertjax/{_gathered}"
    client.key_value_set(f"{place}/{jax.process_index():08d}", json.dumps(value))
    client.wait_at_barrier(f"{place}/told", _PATIENCE_MILLISECONDS)
    return [json.loads(text) for _, text in sorted(client.key_value_dir_get(f"{place}/"))]


def together(action: Callable[[], T]) -> T:
    """Runs an action in every process; where one fails, all of them do.

    Returns:
      What this process got.

    Raises:
      UserError: the action raised one here or in another process.
      Exception: what else it raised here; to the others it is a UserError.
    """
    global _all_end
    if jax.process_count() == 1:
        return action()
    result, failure, unforeseen = None, None, None
    try:
        result = action()
    except Exception as error:  # whatever it is, the others shall not wait for this process
        failure = [str(error) or type(error).__name__, cli.code_for(error)]
        unforeseen = None if isinstance(error, (UserError, OSError)) else error
    for index, failed in enumerate(gather(failure)):
        if failed:
            _all_end = True
            if unforeseen is not None:
                raise unforeseen
            message, exit_code = failed
            kind = UserError if exit_code == cli.BAD_INPUT else RunFailed
            raise kind(message if index == 0 else f"process {index}: {message}")
    return result


def on_writer(action: Callable[[], Any]) -> None:
    """Runs an action in process 0 alone while the others wait; where it fails, all of them do.

    Raises:
      UserError: the action raised one.
    """
    together(action if is_writer() else lambda: None)


class StopTogether:
    """Whether to stop, asked by every process at every chunk edge: all get the same answer at the same edge.

    A process that gets SIGTERM, or Ctrl-C, is to be preempted; JAX finds the next edge that none has passed yet.
    """

    def __init__(self):
        self._edges = 0
        signal.signal(signal.SIGINT, self._interrupted)
        self._interrupts = 0

    def __call__(self) -> bool:
        self._edges += 1  # and not the step: the one that is agreed on is the next by number
        return multihost_utils.reached_preemption_sync_point(self._edges)

    def _interrupted(self, signum: int, frame: Any) -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGTERM)


def leave(run: Callable[[], int]) -> int:
    """Return the exit code of `run`, after leaving the other processes.

    All processes end together if the run went well, or if all of them know that it cannot start. A process that fails
    alone ends at once: the others may wait for it in the middle of a step, and it must not wait for them.
    """
    try:
        exit_code = run()
    except Exception:
        if global_state.client is None:
            raise
        traceback.print_exc()
        exit_code = cli.FAILED
    if global_state.client is not None:
        if exit_code in (cli.FINISHED, cli.STOPPED) or _all_end:
            jax.distributed.shutdown()
        else:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(exit_code)
    return exit_code


@contextlib.contextmanager
def noticing_lost_peers() -> Iterator[None]:
    """Says in one line that another process has gone, where a computation or an agreement fails for that.

    Raises:
      RunFailed: it has.
    """
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if jax.process_count() > 1 and any(sign in str(error) for sign in _SIGNS_OF_A_LOST_PEER):
            raise RunFailed(
                f"another process of the run has ended ({str(error).splitlines()[0][:200]}); what was saved stays: "
                "give the same command again to all of them"
            ) from error
        raise
