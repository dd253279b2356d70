"""Signal handling in worker processes: they end with the process that started them, and for no other reason.

Stop signals often reach a whole process group or control group: from Ctrl-C in a terminal, from systemd when a VM shuts
down, and from Slurm. The main process then saves a checkpoint, and needs its workers until it ends.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from typing import cast

from bertjax.runtime.terminal import STOP_SIGNALS


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
