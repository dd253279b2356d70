"""Minimal pairs: how often a model finds the acceptable sentence of two likelier than the unacceptable one.

The pairs are those of BLiMP (Warstadt et al., 2020, arXiv 1912.00582) or in its fields; a model that guesses masked
tokens scores a sentence by its pseudo-log-likelihood, as Salazar et al. (2020, arXiv 1910.14659) do on BLiMP.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from bertjax.data.labeled.base import WHERE, Record
from bertjax.errors import UserError
from bertjax.inference.likelihood import PseudoLogLikelihood
from bertjax.inference.predictor import Predictor, Question
from bertjax.inference.records import read_file

GOOD, BAD, PARADIGM = "sentence_good", "sentence_bad", "UID"


def read(path: str) -> list[Record]:
    """The pairs of a .jsonl file: `sentence_good`, `sentence_bad` and, where pairs are of several kinds, `UID`.

    Raises:
      UserError: the file cannot be read, is empty, or holds a line that is no pair.
    """
    if not path.endswith(".jsonl"):
        raise UserError(f"{path} is no .jsonl file; give one JSON object a line, with {GOOD!r} and {BAD!r}")
    pairs = read_file(path, (GOOD, BAD))
    if not pairs:
        raise UserError(f"{path} is empty; give at least one pair")
    return pairs


def question(predictor: Predictor, pairs: list[Record]) -> Question:
    """All the sentences of the pairs, ready to be scored.

    Raises:
      UserError: the model has no masked-LM head.
    """
    sentences = [{"text": pair[side], WHERE: pair[WHERE]} for pair in pairs for side in (GOOD, BAD)]
    return predictor.question(predictor.use(PseudoLogLikelihood), sentences)


def score(
    predictor: Predictor,
    pairs: list[Record],
    question: Question,
    on_tokens: Callable[[int], object] = lambda tokens: None,
) -> dict[str, Any]:
    """The share of the pairs whose good sentence has the higher score; a tie is not higher.

    Args:
      predictor: the model.
      pairs: from `read`.
      question: what `question` made of them.
      on_tokens: called with the tokens of each batch when it is done.

    Returns:
      {`accuracy`, `pairs`: how many, `UID`: {name: {`accuracy`, `pairs`}}}, the names in the order of the file; a pair
      without a `UID` counts in the whole alone.
    """
    scores = [answer["pseudo_log_likelihood"] for answer in predictor.answers(question, on_tokens)]
    good, bad = np.array(scores).reshape(-1, 2).T
    is_right = good > bad
    paradigms: dict[str, list[bool]] = {}
    for pair, right in zip(pairs, is_right, strict=True):
        if PARADIGM in pair:
            paradigms.setdefault(str(pair[PARADIGM]), []).append(bool(right))
    return _shares(is_right) | {PARADIGM: {name: _shares(of) for name, of in paradigms.items()}}


def table(figures: dict[str, Any]) -> str:
    """Lines for a terminal: what `score` gave."""
    rows = [*figures[PARADIGM].items(), ("all", figures)]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {of['accuracy']:>8.1%}  {of['pairs']:>7,}" for name, of in rows]
    return "\n".join([f"{'':<{width}}  accuracy    pairs", *lines])


def _shares(is_right: np.ndarray | list[bool]) -> dict[str, float]:
    return {"accuracy": float(np.mean(is_right)), "pairs": len(is_right)}
