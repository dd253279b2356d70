"""python -m tests.data.killed_parent: starts two workers, prints their process ids, and waits to be killed."""

import multiprocessing
import signal

import numpy as np

from bertjax.data.pipeline import iterate


def make(step: int) -> dict[str, np.ndarray]:
    return {"step": np.array(step)}


if __name__ == "__main__":
    batches = iterate(make, 0, 10**6, workers=2, prefetch=1)
    next(batches)
    print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
    signal.pause()
