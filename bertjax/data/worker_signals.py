"""Signals of processes that work for another one: they end when that one ends, and for no other reason.

A stop signal often reaches a whole process group or control group: Ctrl-C in a terminal, systemd when a VM shuts down,
and Slurm send it so. The process that started the workers then saves, and needs its workers until it ends.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def ignore_stop_signals() -> None:
    """Ignore SIGTERM and Ctrl-C in this process."""
    for signum in _STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def end_with_parent() -> None:
    """End this process, which `multiprocessing` started, as soon as the one that started it is gone, even by SIGKILL.

    A thread waits for the end of a pipe that only the parent holds. Linux could send a signal instead
    (PR_SET_PDEATHSIG), but it does so when the starting *thread* ends, and Grain starts its workers from short-lived
    threads.
    """

    def wait() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=wait, name="end with parent", daemon=True).start()


@contextlib.contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Hold back stop signals for this thread. Processes that it starts inherit that from their first instruction.

    Without it, a signal would end a worker that is still importing, before it can call `ignore_stop_signals`.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
