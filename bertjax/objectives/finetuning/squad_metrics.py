"""SQuAD metrics (Rajpurkar et al., 2016, arXiv 1606.05250, 6.1; 2018, arXiv 1806.03822) for all writing systems.

Definitions follow the official script, `evaluate-v2.0.py`. For answerable questions it agrees with version 1.1, except
if normalization makes an answer empty.

The official script compares space-separated words. A Chinese answer is then a single word, and a Korean answer with
another particle is wrong. F1 therefore counts characters where the official scripts for such languages do: KorQuAD 1.0
(Lim et al., 2019, arXiv 1909.07005) for Korean, and MLQA (Lewis et al., 2020, arXiv 1910.07475, `mixed_segmentation`)
for text without spaces.
"""

import collections
import functools
import re
import string
import unicodedata
from collections.abc import Sequence

import numpy as np

from bertjax.data.labeled.base import Record
from bertjax.data.text.unicode import is_unspaced

WORDS, CHARACTERS, KOREAN = "words", "characters", "korean"
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
# KorQuAD's script replaces these by spaces before it removes punctuation.
_KORQUAD_BRACKETS = str.maketrans({character: " " for character in "'\"《》<>〈〉()‘’"})
_HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff]")
_LINES = {
    CHARACTERS: "characters of scripts without spaces, and words of others, as MLQA's script does",
    KOREAN: "characters, as KorQuAD's script does",
}


@functools.lru_cache(maxsize=1 << 14)  # contexts repeat: several questions, each scored several times
def unit_of(text: str) -> str:
    """Return the unit that F1 counts, `WORDS`, `CHARACTERS` or `KOREAN`, by the script that most letters belong to."""
    if text.isascii():
        return WORDS
    letters = [character for character in text if character.isalpha()]
    korean = sum(map(bool, map(_HANGUL.match, letters)))
    without_spaces = sum(map(is_unspaced, letters))
    most = max(korean, without_spaces)
    if 2 * (korean + without_spaces) <= len(letters):
        return WORDS
    return KOREAN if korean == most else CHARACTERS


def lines(questions: Sequence[Record]) -> list[str]:
    """Return lines for a run's output: one for each unit other than words that F1 and exact match count."""
    counts = collections.Counter(unit_of(question["context"]) for question in questions)
    return [
        f"F1 and exact match of {counts[unit]:,} of {len(questions):,} held-out questions count {what}"
        for unit, what in _LINES.items()
        if counts[unit]
    ]


def words(text: str) -> list[str]:
    """Normalize an answer: split it into lower-case words without punctuation and English articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split()


def units(text: str, unit: str) -> list[str]:
    """Normalize an answer: split it into units in lower case without punctuation."""
    if unit == WORDS:
        return words(text)
    if unit == KOREAN:
        return list("".join(_korean_words(text)))
    others = text.lower().translate(_WITHOUT_PUNCTUATION)
    kept = (character for character in others if not unicodedata.category(character).startswith("P"))
    # Put spaces around each unspaced character, so that `split` treats it as a word.
    spaced = (f" {character} " if is_unspaced(character) else character for character in kept)
    return "".join(spaced).split()


def exact_match(answer: str, gold: Sequence[str], unit: str = "") -> float:
    """Return 1 if a normalized answer equals a normalized gold answer, else 0.

    Args:
      answer: predicted answer.
      gold: correct answers; empty for an unanswerable question.
      unit: see `unit_of`; inferred from the answers if empty.
    """
    split = _korean_words if (unit := unit or _unit_of(answer, gold)) == KOREAN else functools.partial(units, unit=unit)
    return float(any(split(answer) == split(other) for other in gold or [""]))


def f1(answer: str, gold: Sequence[str], unit: str = "") -> float:
    """Return the best F1 over the gold answers, between 0 and 1. See `exact_match` for the arguments."""
    unit = unit or _unit_of(answer, gold)
    return max(_f1(units(answer, unit), units(other, unit)) for other in gold or [""])


def _unit_of(answer: str, gold: Sequence[str]) -> str:
    return unit_of("".join([answer, *gold]))


def _korean_words(text: str) -> list[str]:
    """Normalize and split as in KorQuAD's script, which compares these words for an exact match."""
    return text.translate(_KORQUAD_BRACKETS).lower().translate(_WITHOUT_PUNCTUATION).split()


def _f1(answer: list[str], gold: list[str]) -> float:
    # As in the official script: an empty answer is right only if there is none.
    if not answer or not gold:
        return float(answer == gold)
    same = sum((collections.Counter(answer) & collections.Counter(gold)).values())
    return 2 * same / (len(answer) + len(gold))


def best_threshold(margins: np.ndarray, answered: np.ndarray, refused: np.ndarray) -> float:
    """Return the threshold that maximizes the total score; a question is answered if its margin is not above it.

    The threshold is halfway between the two margins that it separates, or 1 beyond the outermost margin.

    Args:
      margins: [Q], no-answer score minus best answer score.
      answered: [Q], metric for each question if it is answered.
      refused: [Q], metric for each question if its answer is left empty.
    """
    # Raising the threshold past a margin answers one more question, so cumulative gains give all totals in one pass.
    order = np.argsort(margins, kind="stable")
    margins = margins[order]
    between = np.concatenate([[margins[0] - 1.0], (margins[:-1] + margins[1:]) / 2, [margins[-1] + 1.0]])
    gains = np.concatenate([[0.0], np.cumsum((answered - refused)[order])])
    gains[1:-1][margins[:-1] == margins[1:]] = -np.inf  # no threshold separates equal margins
    return float(between[np.argmax(gains)])
