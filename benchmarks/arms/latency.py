"""Milliseconds of a sentence on one core: encoders of bertjax in turns. Prints JSON.

    taskset -c 0 python -m benchmarks.arms.latency EXPORT...

Rows of 32 tokens, in batches of 1 and of 32; the median of all turns.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

import jax
import numpy as np

import bertjax
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime import platform

BATCHES, TOKENS, TURNS = (1, 32), 32, 15


def main(*exports: str) -> None:
    """The command line."""
    platform.configure("cpu")
    arms = {}
    for name in exports:
        module, params, tokenizer = bertjax.load(name)
        forward = jax.jit(lambda params, tokens_BT, module=module: module.apply({"params": params}, tokens_BT))
        params = jax.device_put(params)
        for size in BATCHES:
            tokens_BT = rows(tokenizer, size).astype(np.int32)
            arms[name, size] = lambda forward=forward, params=params, tokens_BT=tokens_BT: jax.block_until_ready(
                forward(params, tokens_BT)
            )
    print(json.dumps(medians(arms)))


def rows(tokenizer: Tokenizer, size: int) -> np.ndarray:
    """Return random rows of tokens, int64."""
    return np.random.default_rng(0).integers(tokenizer.vocab_size // 2, tokenizer.vocab_size, (size, TOKENS))


def medians(arms: dict[tuple[str, int], Callable[[], object]]) -> dict[str, dict[str, float]]:
    """Run arms, each a model with the size of its batch, in turns; return {model: {batch: milliseconds a sentence}}."""
    times = {arm: [] for arm in arms}
    for turn in range(TURNS + 1):  # the first one compiles
        for (name, size), run in arms.items():
            began = time.perf_counter()
            run()
            times[name, size] += [1000 * (time.perf_counter() - began) / size][: turn > 0]
    taken = {name: {} for name, _ in arms}
    for (name, size), each in times.items():
        taken[name][f"batch_{size}"] = statistics.median(each)
    return taken


if __name__ == "__main__":
    main(*sys.argv[1:])
