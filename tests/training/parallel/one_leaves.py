"""One of two processes ends by itself with an exit code, while the other still works. Run by test_processes.py.

Process 1 ends with the code in the variable ENDS. Process 0 works until it is killed.
"""

import os
import signal
import sys

import jax

from bertjax.training.parallel import processes


def run() -> int:
    processes.gather(0, "both have started")
    if jax.process_index() == 1:
        return int(os.environ["ENDS"])
    signal.pause()
    return 0


if __name__ == "__main__":
    processes.start(10)
    sys.exit(processes.leave(run))
