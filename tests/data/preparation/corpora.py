"""Made-up corpora, and preparations of them in a process that may be killed."""

import os
import random
import signal
import subprocess
import sys
import time

from bertjax.data.preparation import shards, workers
from bertjax.data.preparation.spec import path_of, spec_of
from bertjax.runtime import storage
from tests.waiting import kill_at_exit


def write_corpus(path, documents, seed=0):
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 7))) for _ in range(500)]
    with open(path, "w") as file:
        for _ in range(documents):
            for _ in range(draw.randint(2, 9)):
                file.write(" ".join(draw.choices(words, k=12)).capitalize() + ".\n")
            file.write("\n")


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def store_path(config):
    return path_of(config, spec_of(config))


def in_a_process(config, before="", afterward="", shard_bytes=shards.SHARD_BYTES):
    """Prepare a corpus in another process. `before` and `afterward` are code that it runs, which knows this module."""
    code = (
        "import re\nfrom bertjax.data.preparation import shards\nfrom bertjax.data.preparation.prepare import prepare\n"
        "from bertjax.data.config import *\nfrom tests.data.preparation import corpora\n"
        f"shards.SHARD_BYTES = {shard_bytes}\n{before}\nprepare({config})\n{afterward}"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return kill_at_exit(subprocess.Popen([sys.executable, "-c", code], text=True, **pipes))


def publish_nothing():
    """Make this process wait where it would publish the store, so that whoever kills it cannot be too late."""
    storage.publish = lambda *_: wait()


def pause_after(number, resume=""):
    """Make this process wait when it has the results of so many shards, until the file `resume` exists, or for ever."""
    unordered = workers.unordered

    def paused(work, tasks, processes):
        for count, answer in enumerate(unordered(work, tasks, processes), 1):
            yield answer
            if count == number:
                wait(resume)

    workers.unordered = paused


def signaled(task: int) -> int:
    """What a worker does: it gets the signals that reach its whole group. It imports no more than this module."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(os.getpid(), signum)
    return task


def wait(resume=""):
    while not os.path.exists(resume):
        time.sleep(0.01)
