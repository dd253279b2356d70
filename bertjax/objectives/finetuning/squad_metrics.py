"""Metrics of SQuAD (Rajpurkar et al., 2016, arXiv 1606.05250, 6.1; 2018, arXiv 1806.03822).

The definitions follow the official script, `evaluate-v2.0.py`. Its scores of questions with an answer are those of
version 1.1, except for answers that normalization makes empty.
"""

import collections
import re
import string
from collections.abc import Sequence

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def words(text: str) -> list[str]:
    """Return the words of an answer in lower case, without punctuation and English articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split()


def exact_match(answer: str, gold: Sequence[str]) -> float:
    """Return 1 if an answer has the words of any gold answer, else 0; `gold` is empty for an unanswerable question."""
    return float(any(words(answer) == words(other) for other in gold or [""]))


def f1(answer: str, gold: Sequence[str]) -> float:
    """Return the F1 of the words, the best over the gold answers; between 0 and 1."""
    return max(_f1(words(answer), words(other)) for other in gold or [""])


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    same = sum((collections.Counter(answer) & collections.Counter(gold)).values())
    return 2 * same / (len(answer) + len(gold))


def best_threshold(margins: np.ndarray, answered: np.ndarray, refused: np.ndarray) -> float:
    """Return the threshold with the highest sum of scores; a question is answered if its margin is not above it.

    It is halfway between the margins that it separates, or 1 beyond the outermost margin.

    Args:
      margins: [Q], the score of no answer minus that of the best answer.
      answered: [Q], the metric of each question if it is answered.
      refused: [Q], the metric of each question if its answer is left empty.
    """
    order = np.argsort(margins, kind="stable")
    margins = margins[order]
    between = np.concatenate([[margins[0] - 1.0], (margins[:-1] + margins[1:]) / 2, [margins[-1] + 1.0]])
    gains = np.concatenate([[0.0], np.cumsum((answered - refused)[order])])
    gains[1:-1][margins[:-1] == margins[1:]] = -np.inf  # no threshold separates equal margins
    return float(between[np.argmax(gains)])
