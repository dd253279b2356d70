"""python -m tests.faults.stop_cases: trains in forked processes, and sends a stop signal in a chosen phase of each.

Each line of stdin is a case in JSON: the phase, whether the signal goes to the process or to its group, whether the run
is --distributed, and the flags of the run. Each line of stdout is the exit code and the process id of one. A fork saves
the seconds that imports take. The run is in a group of its own, with its workers.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable

from jax._src.distributed import global_state

from bertjax.cli import train
from bertjax.runtime import command_line
from bertjax.training.parallel import processes
from tests.faults import injection

# Chunks after a signal that all processes know of, within which a run stops. It takes one or two.
PATIENCE = 300
NOT_STOPPED = 99
# The key under which JAX's coordination service stores the notice of a preemption.
_NOTICE = "RECEIVED_PREEMPTION_NOTICE"
_MILLISECONDS = 120_000


def _signal_once(to_group: bool, distributed: bool, asked: list[bool]) -> Callable[[], None]:
    """Return an action that sends SIGTERM and waits until the run can know of it."""

    def act() -> None:
        (os.killpg if to_group else os.kill)(os.getpid(), signal.SIGTERM)
        if distributed:
            global_state.client.blocking_key_value_get(_NOTICE, _MILLISECONDS)
        asked.append(True)

    return act


@contextlib.contextmanager
def _limited_patience(asked: list[bool]):
    """End the process if the run goes on and on after a signal."""
    original = processes.StopTogether.__call__

    def call(self) -> bool:
        answer = original(self)
        if asked:
            asked.append(answer)
        if len(asked) > PATIENCE:
            os._exit(NOT_STOPPED)
        return answer

    processes.StopTogether.__call__ = call
    yield


def _train(case: dict) -> int:
    asked: list[bool] = []
    act = _signal_once(case["to"] == "group", case["distributed"], asked)
    with _limited_patience(asked), injection.at(case["phase"], act):
        return processes.leave(lambda: command_line.exit_code_of(lambda: train.main(case["flags"])))


def _in_child(case: dict) -> None:
    os.setsid()
    output = os.open(case["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ |= case["environment"]
    try:
        code = _train(case)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = command_line.FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for line in sys.stdin:
        if not (child := os.fork()):
            _in_child(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), child, flush=True)
