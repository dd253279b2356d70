"""Times of answers: quantiles of the latency of a call, and texts a second; two files of one model side by side."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax.inference.base import inputs_of
from bertjax.inference.onnx import OnnxModel, read, score

# Fewer calls have no 99th percentile.
_FEWEST_CALLS = 20


class Timing(NamedTuple):
    """Times of calls with the same number of texts.

    Attributes:
      calls: number of calls.
      p50: median seconds of a call.
      p99: seconds that 99% of the calls do not exceed.
      texts_per_second: texts over the time of all calls, which follow each other.
    """

    calls: int
    p50: float
    p99: float
    texts_per_second: float


def measure(answer: Callable[[list[Any]], object], texts: Sequence[Any], batch: int, seconds: float) -> Timing:
    """Time calls with `batch` texts each, one after the other, from text to answer.

    Every batch is computed once before the clock starts: JAX compiles each shape, and ONNX Runtime plans its memory.

    Args:
      answer: computes a list of texts.
      texts: at least one text; they are repeated if there are fewer than `batch`.
      batch: texts per call.
      seconds: time to spend; at least 20 calls are timed.
    """
    repeated = [texts[number % len(texts)] for number in range(max(len(texts), batch))]
    # The last texts that do not fill a batch are left out: all calls have the same size.
    batches = [repeated[first : first + batch] for first in range(0, len(repeated) - batch + 1, batch)]
    for texts_of_batch in batches:
        answer(texts_of_batch)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < _FEWEST_CALLS or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        answer(batches[len(times) % len(batches)])
        times.append(time.perf_counter() - before)
    p50, p99 = np.quantile(times, [0.5, 0.99])
    return Timing(len(times), float(p50), float(p99), len(times) * batch / sum(times))


# Texts whose time is measured, and seconds for each file.
_TEXTS, _SECONDS = 64, 1.0


def compared(before: str | os.PathLike, after: str | os.PathLike, path: str) -> list[str]:
    """Return one line per score, and one with the median time of a text on one thread: `NAME BEFORE -> AFTER`.

    Args:
      before: the original.
      after: the changed file.
      path: the labeled file.

    Raises:
      UserError: see `onnx.score`.
    """
    scores, times = [], []
    for file in (before, after):
        model = OnnxModel(file, threads=1)
        records, _ = read(model.description, path)
        texts = inputs_of(model.task(), records[:_TEXTS])
        times.append(measure(model.predict, texts, 1, _SECONDS).p50 * 1e3)
        scores.append(score(OnnxModel(file), path)["eval"])
    names = [name for name in scores[0] if name in scores[1]]  # an F1 of nothing is not there
    lines = [f"score: {name} {scores[0][name]:.4f} -> {scores[1][name]:.4f}" for name in names]
    return [*lines, f"time: {times[0]:.2f} -> {times[1]:.2f} ms a text (median, one thread)"]
