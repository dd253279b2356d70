"""Milliseconds of a sentence on one core: encoders of bertjax in turns. Prints JSON.

    taskset -c 0 python -m benchmarks.arms.latency EXPORT...

Rows of 32 tokens, in batches of 1 and of 32; the median of all turns.
"""

import json
import statistics
import sys
import time

import jax
import numpy as np

import bertjax
from bertjax.hardware import platform

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
            tokens_BT = np.random.default_rng(0).integers(
                tokenizer.vocab_size // 2, tokenizer.vocab_size, (size, TOKENS)
            )
            arms[name, size] = forward, params, tokens_BT.astype(np.int32)
    times = {arm: [] for arm in arms}
    for turn in range(TURNS + 1):  # the first one compiles
        for (name, size), (forward, params, tokens_BT) in arms.items():
            began = time.perf_counter()
            jax.block_until_ready(forward(params, tokens_BT))
            times[name, size] += [1000 * (time.perf_counter() - began) / size][: turn > 0]
    medians = {name: {} for name in exports}
    for (name, size), taken in times.items():
        medians[name][f"batch_{size}"] = statistics.median(taken)
    print(json.dumps(medians))


if __name__ == "__main__":
    main(*sys.argv[1:])
