"""How SQuAD scores answers (Rajpurkar et al., 2016, arXiv 1606.05250, 6.1; 2018, arXiv 1806.03822).

The definitions follow the official script, `evaluate-v2.0.py`, whose scores of questions with an answer are those of
version 1.1 but for answers of which normalization leaves nothing.
"""

import collections
import re
import string
from collections.abc import Sequence

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def words(text: str) -> list[str]:
    """The words of an answer: lower case, without punctuation and English articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split()


def exact_match(answer: str, gold: Sequence[str]) -> float:
    """1 if the words of an answer are those of any of the gold answers, else 0; `gold` is empty where there is none."""
    return float(any(words(answer) == words(each) for each in gold or [""]))


def f1(answer: str, gold: Sequence[str]) -> float:
    """The harmonic mean of precision and recall of the words, the best over the gold answers; between 0 and 1."""
    return max(_f1(words(answer), words(each)) for each in gold or [""])


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    same = sum((collections.Counter(answer) & collections.Counter(gold)).values())
    return 2 * same / (len(answer) + len(gold))


def best_threshold(margins: np.ndarray, answered: np.ndarray, refused: np.ndarray) -> float:
    """The threshold with the highest sum of scores, where a question is answered if its margin is not above it.

    It lies halfway between the margins that it separates, or 1 beyond the outermost.

    Args:
      margins: [Q], by how much the score of no answer exceeds that of the best answer.
      answered: [Q], what giving that answer scores.
      refused: [Q], what giving none scores.
    """
    order = np.argsort(margins, kind="stable")
    margins = margins[order]
    between = np.concatenate([[margins[0] - 1.0], (margins[:-1] + margins[1:]) / 2, [margins[-1] + 1.0]])
    gains = np.concatenate([[0.0], np.cumsum((answered - refused)[order])])
    gains[1:-1][margins[:-1] == margins[1:]] = -np.inf  # equal margins cannot be told apart
    return float(between[np.argmax(gains)])
