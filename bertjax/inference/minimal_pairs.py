"""Minimal pairs: how often a model finds the acceptable sentence of two more probable than the unacceptable one.

The pairs are those of BLiMP (Warstadt et al., 2020, arXiv 1912.00582), or have its fields. A sentence is scored by its
pseudo-log-likelihood under a masked language model, as Salazar et al. (2020, arXiv 1910.14659) do on BLiMP, and by its
log-likelihood under a causal one.

A model that cannot tell the sentences of a pair apart gives both the same score: one that knows only the frequencies of
words does so if one sentence is a permutation of the other. Such a tie counts as half a right answer, which is what a
coin would get, so that chance is 50%.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from bertjax.data.labeled.base import WHERE, Record
from bertjax.errors import UserError
from bertjax.inference.likelihood import LogLikelihood, PseudoLogLikelihood, is_causal
from bertjax.inference.predictor import Predictor, Request
from bertjax.inference.records import read_file

GOOD, BAD, PARADIGM = "sentence_good", "sentence_bad", "UID"
# Scores that differ relatively by less than float32 rounds in a forward pass are equal.
_ROUNDING = 1e-6


def read(path: str) -> list[Record]:
    """Return the pairs of a .jsonl file: `sentence_good`, `sentence_bad` and, if there are several kinds, `UID`.

    Raises:
      UserError: the file cannot be read, is empty, or has a line that is not a pair.
    """
    if not path.endswith(".jsonl"):
        raise UserError(f"{path} is not a .jsonl file; give one JSON object per line, with {GOOD!r} and {BAD!r}")
    pairs = read_file(path, (GOOD, BAD))
    if not pairs:
        raise UserError(f"{path} is empty; give at least one pair")
    return pairs


def request(predictor: Predictor, pairs: list[Record]) -> Request:
    """Return the request to score all sentences of the pairs.

    Raises:
      UserError: the model has neither a masked-LM head nor a causal one.
    """
    kind = LogLikelihood if is_causal(predictor.model) else PseudoLogLikelihood
    sentences = [{"text": pair[side], WHERE: pair[WHERE]} for pair in pairs for side in (GOOD, BAD)]
    return predictor.request(predictor.pipeline(kind), sentences)


def score(
    predictor: Predictor,
    pairs: list[Record],
    request: Request,
    on_tokens: Callable[[int], object] = lambda tokens: None,
) -> dict[str, Any]:
    """Return the share of the pairs whose good sentence has the higher score; a tie counts as one half.

    Args:
      predictor: the model.
      pairs: the result of `read`.
      request: the result of `request` for these pairs.
      on_tokens: called with the number of tokens of each batch when it is done.

    Returns:
      {`accuracy`, `ties` and `pairs`: their numbers, `UID`: {name: {`accuracy`, `ties`, `pairs`}}}, the names in the
      order of the file; a pair without a `UID` counts only in the overall figures.
    """
    name = request.pipeline.score
    scores = [prediction[name] for prediction in predictor.predictions(request, on_tokens)]
    good, bad = np.array(scores).reshape(-1, 2).T
    points = np.where(np.isclose(good, bad, rtol=_ROUNDING, atol=0.0), 0.5, good > bad)
    paradigms: dict[str, list[float]] = {}
    for pair, point in zip(pairs, points.tolist(), strict=True):
        if PARADIGM in pair:
            paradigms.setdefault(str(pair[PARADIGM]), []).append(point)
    return _shares(points) | {PARADIGM: {name: _shares(of_paradigm) for name, of_paradigm in paradigms.items()}}


def table(figures: dict[str, Any]) -> str:
    """Return the result of `score` as lines for a terminal."""
    rows = [*figures[PARADIGM].items(), ("all", figures)]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {row['accuracy']:>8.1%}  {row['ties']:>7,}  {row['pairs']:>7,}" for name, row in rows]
    return "\n".join([f"{'':<{width}}  accuracy     ties    pairs", *lines])


def _shares(points: np.ndarray | list[float]) -> dict[str, float]:
    ties = int(np.count_nonzero(np.equal(points, 0.5)))
    return {"accuracy": float(np.mean(points)), "ties": ties, "pairs": len(points)}
