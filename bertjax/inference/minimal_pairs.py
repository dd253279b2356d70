"""Minimal pairs: how often a model finds the acceptable sentence more probable than the unacceptable one.

Pairs come from BLiMP (Warstadt et al., 2020, arXiv 1912.00582) or use its fields. A masked language model scores
sentences by pseudo-log-likelihood, as Salazar et al. (2020, arXiv 1910.14659) do on BLiMP, a causal model by
log-likelihood.

A model that cannot distinguish a pair gives both sentences the same score. For example, a model that knows only word
frequencies does so if one sentence is a permutation of the other. Such a tie counts as half a right answer, the
expected score of a coin flip, so chance is 50%.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.config.export import Export
from bertjax.data.labeled.base import WHERE, Record
from bertjax.data.sources.records import COMPRESSIONS
from bertjax.inference.base import bar
from bertjax.inference.likelihood import LogLikelihood, PseudoLogLikelihood, is_causal
from bertjax.inference.predictor import Predictor
from bertjax.inference.records import read_file
from bertjax.runtime.errors import UserError, printable, say

GOOD, BAD, PARADIGM = "sentence_good", "sentence_bad", "UID"
# Names of a pair's scores.
JUDGED = "good", "bad", "point"
# Grouping fields of BLiMP, optional, from finest to coarsest.
GROUPINGS = (PARADIGM, "linguistics_term", "field")
_SUFFIXES = (".jsonl", *(f".jsonl{suffix}" for suffix in COMPRESSIONS))
# Scores are equal if their relative difference is below float32 rounding in a forward pass.
_ROUNDING = 1e-6


def read(path: str) -> list[Record]:
    """Return the pairs in a .jsonl file, plain or compressed, or in all such files of a folder, the layout of BLiMP.

    A pair has `sentence_good`, `sentence_bad` and optionally the fields in `GROUPINGS`.

    Raises:
      UserError: a file cannot be read, is empty, or has a line that is not a pair; or a folder has no such file.
    """
    files = files_of(path)
    if not files:
        raise UserError(f"{path} has no .jsonl files; name a file of pairs, or a folder with some")
    return [pair for file in files for pair in _read_file(str(file))]


def files_of(path: str) -> list[Path]:
    """Return the pair files in a folder, or the named file itself."""
    place = Path(path).expanduser()
    return sorted(file for file in place.iterdir() if file.name.endswith(_SUFFIXES)) if place.is_dir() else [place]


def _read_file(path: str) -> list[Record]:
    if not path.endswith(_SUFFIXES):
        raise UserError(f"{path} is not a .jsonl file; give one JSON object per line, with {GOOD!r} and {BAD!r}")
    return read_file(path, (GOOD, BAD))


def judge(model: Export, pairs: list[Record]) -> list[Record]:
    """Return `good` and `bad`, the scores of both sentences in each pair, and `point`: 1 if right, 0.5 for a tie.

    Progress, and the number of sentences that were cut, go to stderr.

    Args:
      model: the model.
      pairs: result of `read`.

    Raises:
      UserError: the model has neither a masked-LM head nor a causal one.
    """
    kind, predictor = LogLikelihood if is_causal(model) else PseudoLogLikelihood, Predictor(model)
    sentences = [{"text": pair[side], WHERE: pair[WHERE]} for pair in pairs for side in (GOOD, BAD)]
    request = predictor.request(predictor.pipeline(kind), sentences)
    with bar(request.tokens) as progress:
        scores = [prediction[kind.score] for prediction in predictor.predictions(request, progress.update)]
    for note, count in request.notes.items():
        say(f"{count:,} of {len(sentences):,} sentences were {note}", file=sys.stderr)
    # The sentences are listed as good, bad, good, bad, ...
    good, bad = np.array(scores).reshape(-1, 2).T
    points = np.where(np.isclose(good, bad, rtol=_ROUNDING, atol=0.0), 0.5, good > bad)
    columns = zip(good.tolist(), bad.tolist(), points.tolist(), strict=True)
    return [dict(zip(JUDGED, column)) for column in columns]


def shares(pairs: Sequence[Record], judged: Sequence[Record]) -> dict[str, Any]:
    """Return the share of right answers; a tie counts as one half.

    Returns:
      {`accuracy`, `ties` and `pairs`: counts, `UID`: {name: {`accuracy`, `ties`, `pairs`}}}, names in file order.
      `linguistics_term` and `field` likewise, if pairs have them. A pair without a `UID` counts only in the overall
      numbers.
    """
    points = [judgment["point"] for judgment in judged]
    figures = _shares(points) | {PARADIGM: {}}
    for grouping in GROUPINGS:
        # A dict keeps the order in which the names first occur.
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
    """Return the 95% interval for a share of `count` pairs (Wilson, 1927, JASA 22, p. 209)."""
    # Wilson's interval stays within [0, 1] and has a width even at a share of 0 or 1.
    z = 1.959964  # of the normal distribution, two-sided
    shrinkage = 1 + z**2 / count
    center = (share + z**2 / (2 * count)) / shrinkage
    half = z / shrinkage * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return max(0.0, center - half), min(1.0, center + half)


def _shares(points: np.ndarray | list[float]) -> dict[str, float]:
    ties = int(np.count_nonzero(np.equal(points, 0.5)))
    return {"accuracy": float(np.mean(points)), "ties": ties, "pairs": len(points)}
