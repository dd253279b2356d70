"""Worker processes that read, filter and encode documents.

They are started from this module instead of `multiprocessing`. So they import neither JAX nor the main program, a
script needs no `if __name__ == "__main__"`, and they end with the process that started them, for no other reason: stop
signals often reach a whole process group (Ctrl-C in a terminal, systemd, Slurm), and the main process, which then saves
a checkpoint, needs its workers until it ends.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, cast

from bertjax.runtime import command_line
from bertjax.runtime.command_line import STOP_SIGNALS
from bertjax.runtime.errors import RunFailed

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def number(setting: int | None) -> int:
    """Resolve `data.workers` to a number of processes: by default one per usable core."""
    return cores() if setting is None else setting


def cores() -> int:
    """Count the cores that this process may use, at least 1.

    Batch systems, `taskset` and containers allow fewer than the machine has, either by process affinity or by the
    control group's CPU time quota (Linux, cgroup-v2.rst, cpu.max: "QUOTA PERIOD" in microseconds, or "max PERIOD").
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = CPU_MAX.read_text().split()
        if quota != "max":
            count = min(count, max(1, round(int(quota) / int(period))))
    return count


def unordered(work: Callable[[int], Any], tasks: Sequence[int], processes: int) -> Iterator[tuple[int, Any]]:
    """Yield (task, `work(task)`) as tasks complete. With one process or task, work in the calling process.

    Raises:
      RunFailed: a process was killed.
      Exception: `work` raised it.
    """
    if min(processes, len(tasks)) <= 1:
        yield from ((task, work(task)) for task in tasks)
        return
    workers = [_start(work) for _ in range(min(processes, len(tasks)))]
    try:
        waiting, busy = iter(tasks), {}
        for worker in workers:
            task = next(waiting)
            _send(worker, task)
            busy[worker.stdout] = worker, task
        while busy:
            # `wait` looks at the pipe, not at Python's buffer. A worker has one answer under way, so nothing hides
            # there.
            for stdout in wait(list(busy)):  # ready if they have an answer or their process has died
                worker, task = busy.pop(stdout)
                answer = task, _receive(worker)
                # The next task goes out before the answer is yielded, so the worker need not wait for the consumer.
                for task in waiting:
                    _send(worker, task)
                    busy[stdout] = worker, task
                    break
                yield answer
    finally:
        _end(workers)


def _end(workers: Sequence[subprocess.Popen]) -> None:
    for worker in workers:
        # SIGKILL, because workers ignore SIGTERM. `communicate` closes the pipes and collects the exit status.
        worker.kill()
        worker.communicate()


def _start(work: Callable[[int], Any]) -> subprocess.Popen:
    # The same import path as here, so that workers find a user's filters beside a script.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "TOKENIZERS_PARALLELISM": "false",  # one process per core is enough
    }
    with stop_signals_blocked():
        worker = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
    _send(worker, work)
    return worker


def _send(worker: subprocess.Popen, value: Any) -> None:
    try:
        pickle.dump(value, worker.stdin)
        worker.stdin.flush()
    except BrokenPipeError:
        raise _died(worker) from None


def _receive(worker: subprocess.Popen) -> Any:
    try:
        answer = pickle.load(worker.stdout)
    except EOFError:
        raise _died(worker) from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _died(worker: subprocess.Popen) -> RunFailed:
    ended = f"a process of the preparation ended with code {worker.wait()}, perhaps because memory ran out"
    return RunFailed(f"{ended}; run the same command again to resume, if needed with a lower data.workers")


def serve() -> None:
    """A worker's main loop: answer tasks from stdin until the starting process is gone."""
    ignore_stop_signals()  # stdin ends with the starter
    with command_line.guarded("stderr"):
        # A `print` in a filter or library must not end up between the pickled answers.
        answers, sys.stdout = sys.stdout.buffer, sys.stderr
        try:
            work = pickle.load(sys.stdin.buffer)
            while True:
                task = pickle.load(sys.stdin.buffer)
                try:
                    answer = work(task)
                # The answer is the error itself, which `_receive` raises in the calling process.
                except Exception as error:
                    answer = error
                pickle.dump(answer, answers)
                answers.flush()
        except (EOFError, BrokenPipeError):
            os._exit(0)  # without flushing output that nobody reads


def ignore_stop_signals() -> None:
    """Ignore SIGTERM, SIGHUP and Ctrl-C in this process."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def end_with_parent() -> None:
    """End this `multiprocessing` worker as soon as its parent process is gone, even after SIGKILL.

    A thread waits until a pipe closes that only the parent holds. Linux could send a signal instead (PR_SET_PDEATHSIG),
    but it does so when the starting *thread* ends, and Grain starts its workers from short-lived threads.
    """

    def wait() -> None:
        cast(multiprocessing.process.BaseProcess, multiprocessing.parent_process()).join()
        # `sys.exit` would only end this thread.
        os._exit(1)

    # A daemon, because a worker that has finished must not wait for its parent.
    threading.Thread(target=wait, name="end with parent", daemon=True).start()


@contextlib.contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Block stop signals in this thread, and so in the processes that it starts, from their first instruction.

    Otherwise a signal would end a worker that is still importing, before it calls `ignore_stop_signals`.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
