"""The protocol between the benchmark and an arm, each in its own process with its own allocator and threads.

The arm sends `{"loss", "versions"}` once it is warm, or `{"absent"}`. Then it reads a number of steps from each line of
its standard input and answers with `{"seconds"}`.
"""

import json
import os
import time
from collections.abc import Callable
from importlib import metadata

_WARM_UP_STEPS = 2


def serve(build: Callable[[], Callable[[], float]], packages: tuple[str, ...]) -> None:
    """Answer requests until standard input ends.

    Args:
      build: returns the arm's step, which trains once and returns the loss when it has been computed.
      packages: packages whose versions the arm reports.
    """
    # Libraries print to stdout, and the compilers that they start read stdin, so neither keeps the protocol's files.
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def answer(**content) -> None:
        print(json.dumps(content), file=answers, flush=True)

    try:
        step = build()
    except ModuleNotFoundError as error:
        answer(absent=error.name)
        return
    losses = [step() for _ in range(_WARM_UP_STEPS)]
    answer(loss=losses[0], versions={package: metadata.version(package) for package in packages})
    for line in requests:
        step()  # not timed: the caches hold another arm's data, and its idle threads may still spin
        began = time.perf_counter()
        for _ in range(int(line)):
            step()
        answer(seconds=time.perf_counter() - began)
