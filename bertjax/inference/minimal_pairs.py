"""Minimal pairs: how often a model finds the acceptable sentence of two more probable than the unacceptable one.

The pairs are those of BLiMP (Warstadt et al., 2020, arXiv 1912.00582), or have its fields. A sentence is scored by its
pseudo-log-likelihood under a masked language model, as Salazar et al. (2020, arXiv 1910.14659) do on BLiMP, and by its
log-likelihood under a causal one.

A model that cannot tell the sentences of a pair apart gives both the same score: one that knows only the frequencies of
words does so if one sentence is a permutation of the other. Such a tie counts as half a right answer, which is what a
coin would get, so that chance is 50%.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from bertjax.data.labeled.base import WHERE, Record
from bertjax.data.sources.lines import COMPRESSIONS, numbered_lines
from bertjax.errors import UserError, printable
from bertjax.inference.likelihood import LogLikelihood, PseudoLogLikelihood, is_causal
from bertjax.inference.predictor import Predictor, Request
from bertjax.inference.records import read_objects
from bertjax.storage import reason_of

GOOD, BAD, PARADIGM = "sentence_good", "sentence_bad", "UID"
# What the pairs are grouped by, if they have it, from the finest to the coarsest: the fields of BLiMP.
GROUPINGS = (PARADIGM, "linguistics_term", "field")
_SUFFIXES = (".jsonl", *(f".jsonl{suffix}" for suffix in COMPRESSIONS))
# Scores that differ relatively by less than float32 rounds in a forward pass are equal.
_ROUNDING = 1e-6


def read(path: str) -> list[Record]:
    """Return the pairs of a .jsonl file, plain or compressed, or of all such files of a folder, as BLiMP has them.

    A pair has `sentence_good`, `sentence_bad` and optionally the fields of `GROUPINGS`.

    Raises:
      UserError: a file cannot be read, is empty, or has a line that is not a pair; or a folder has no such file.
    """
    files = files_of(path)
    if not files:
        raise UserError(f"{path} has no .jsonl files; name a file of pairs, or a folder with some")
    return [pair for file in files for pair in _read_file(str(file))]


def files_of(path: str) -> list[Path]:
    """Return the files of pairs of a folder, or the one that is named."""
    place = Path(path).expanduser()
    return sorted(file for file in place.iterdir() if file.name.endswith(_SUFFIXES)) if place.is_dir() else [place]


def _read_file(path: str) -> list[Record]:
    if not path.endswith(_SUFFIXES):
        raise UserError(f"{path} is not a .jsonl file; give one JSON object per line, with {GOOD!r} and {BAD!r}")
    try:
        lines = [line for _, line in numbered_lines(epath.Path(path))]
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason_of(error)}; name a .jsonl file") from None
    pairs = read_objects(lines, path, (GOOD, BAD))
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
    """Return the share of the pairs whose good sentence has the higher score (`shares` of `judge`)."""
    return shares(pairs, judge(predictor, pairs, request, on_tokens))


def judge(
    predictor: Predictor,
    pairs: list[Record],
    request: Request,
    on_tokens: Callable[[int], object] = lambda tokens: None,
) -> list[Record]:
    """Return `good` and `bad`, the scores of both sentences of each pair, and `point`: 1 if right, 0.5 for a tie.

    Args:
      predictor: the model.
      pairs: the result of `read`.
      request: the result of `request` for these pairs.
      on_tokens: called with the number of tokens of each batch when it is done.
    """
    name = request.pipeline.score
    scores = [prediction[name] for prediction in predictor.predictions(request, on_tokens)]
    good, bad = np.array(scores).reshape(-1, 2).T
    points = np.where(np.isclose(good, bad, rtol=_ROUNDING, atol=0.0), 0.5, good > bad)
    columns = zip(good.tolist(), bad.tolist(), points.tolist(), strict=True)
    return [{"good": good, "bad": bad, "point": point} for good, bad, point in columns]


def shares(pairs: Sequence[Record], judged: Sequence[Record]) -> dict[str, Any]:
    """Return the share of right answers; a tie counts as one half.

    Returns:
      {`accuracy`, `ties` and `pairs`: their numbers, `UID`: {name: {`accuracy`, `ties`, `pairs`}}}, the names in the
      order of the file; `linguistics_term` and `field` likewise, if pairs have them. A pair without a `UID` counts only
      in the overall figures.
    """
    points = [judgment["point"] for judgment in judged]
    figures = _shares(points) | {PARADIGM: {}}
    for grouping in GROUPINGS:
        groups: dict[str, list[float]] = {}
        for pair, point in zip(pairs, points, strict=True):
            if grouping in pair:
                groups.setdefault(str(pair[grouping]), []).append(point)
        if groups:
            figures[grouping] = {name: _shares(group) for name, group in groups.items()}
    return figures


def table(figures: dict[str, Any]) -> str:
    """Return the result of `score` as lines for a terminal."""
    groups = [group for name in GROUPINGS for group in figures.get(name, {}).items()]
    rows = [*((printable(name), group) for name, group in groups), ("all", figures)]
    width = max(len(name) for name, _ in rows)
    lines = [f"{'':<{width}}  accuracy     95% interval     ties    pairs"]
    for name, row in rows:
        low, high = interval(row["accuracy"], row["pairs"])
        share = f"{row['accuracy']:>8.1%}  {low:>6.1%} to {high:>6.1%}"
        lines.append(f"{name:<{width}}  {share}  {row['ties']:>7,}  {row['pairs']:>7,}")
    return "\n".join(lines)


def interval(share: float, count: int) -> tuple[float, float]:
    """Return the interval of 95% of a share of `count` pairs (Wilson, 1927, JASA 22, p. 209)."""
    z = 1.959964  # of the normal distribution, two-sided
    shrinkage = 1 + z**2 / count
    center = (share + z**2 / (2 * count)) / shrinkage
    half = z / shrinkage * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return max(0.0, center - half), min(1.0, center + half)


def _shares(points: np.ndarray | list[float]) -> dict[str, float]:
    ties = int(np.count_nonzero(np.equal(points, 0.5)))
    return {"accuracy": float(np.mean(points)), "ties": ties, "pairs": len(points)}
