"""Two ONNX files of one model on the same labeled file: scores and times side by side."""

import os

from bertjax.serving import evaluate
from bertjax.serving.latency import measure
from bertjax.serving.model import OnnxModel
from bertjax.serving.predict import texts_of

# Texts whose time is measured, and seconds for each file.
_TEXTS, _SECONDS = 64, 1.0


def compared(before: str | os.PathLike, after: str | os.PathLike, path: str) -> list[str]:
    """Return one line per score, and one with the median time of a text on one thread: `NAME BEFORE -> AFTER`.

    Args:
      before: the original.
      after: the changed file.
      path: the labeled file.

    Raises:
      UserError: see `evaluate.run`.
    """
    scores, times = [], []
    for file in (before, after):
        model = OnnxModel(file, threads=1)
        records, _ = evaluate.read(model.description, path)
        times.append(measure(model.answers, texts_of(model.description, records[:_TEXTS]), 1, _SECONDS).p50 * 1e3)
        scores.append(evaluate.run(OnnxModel(file), path)["eval"])
    lines = [f"score: {name} {value:.4f} -> {scores[1][name]:.4f}" for name, value in scores[0].items()]
    return [*lines, f"time: {times[0]:.2f} -> {times[1]:.2f} ms a text (median, one thread)"]
