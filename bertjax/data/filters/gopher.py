"""Gopher's rules for quality and repetition (Rae et al. 2021, arXiv 2112.11446, appendix A1.1 and table A1)."""

import dataclasses
import re
import string
from collections.abc import Sequence

import numpy as np

from bertjax.data.filters import Filter
from bertjax.data.sources import Document
from bertjax.data.text import unicode
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting

_ELLIPSIS = ("...", "\u2026")
_BULLETS = ("\u2022", "\u2023", "\u25cf", "\u25e6", "\u2043", "*", "-")
_LETTER = re.compile(r"[^\W\d_]")
_PUNCTUATION = string.punctuation + "\u2018\u2019\u201c\u201d"


@dataclasses.dataclass(frozen=True)
class GopherQuality(Filter):
    """Keeps documents that look like prose, with the paper's thresholds.

    The paper does not define a word; here white space separates words, and in scripts without spaces each character is
    one. If most words are such characters, the mean word length is not tested. The stop words are English: for another
    language set `stop_words`, or `fewest_stop_words=0`.

    Attributes:
      fewest_words: minimum words.
      most_words: maximum words.
      shortest_mean_word: minimum mean word length, in characters.
      longest_mean_word: maximum mean word length, in characters.
      most_symbols: maximum number of `#`, and of ellipses, per word.
      most_bullets: maximum share of lines that start with a bullet.
      most_ellipses: maximum share of lines that end with an ellipsis.
      fewest_alphabetic: minimum share of words that contain a letter.
      fewest_stop_words: how many different stop words must occur.
      stop_words: the words of which `fewest_stop_words` must occur, in lower case.
    """

    kind: str = dataclasses.field(default="gopher_quality", init=False)
    fewest_words: int = setting(50, least=0)
    most_words: int = setting(100_000, least=0)
    shortest_mean_word: float = setting(3.0, least=0)
    longest_mean_word: float = setting(10.0, least=0)
    most_symbols: float = setting(0.1, least=0, most=1)
    most_bullets: float = setting(0.9, least=0, most=1)
    most_ellipses: float = setting(0.3, least=0, most=1)
    fewest_alphabetic: float = setting(0.8, least=0, most=1)
    fewest_stop_words: int = setting(2, least=0)
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")

    def __post_init__(self):
        super().__post_init__()
        if self.fewest_stop_words > len(set(self.stop_words)):
            raise UserError(
                f"fewest_stop_words={self.fewest_stop_words} of the filter {self.kind!r} exceeds its "
                f"{len(set(self.stop_words))} stop_words, so it would drop everything; lower it"
            )

    def keep(self, document: Document) -> str | None:
        words = unicode.words(document.text)
        if len(words) < self.fewest_words:
            return f"fewer than {self.fewest_words:,} words"
        if len(words) > self.most_words:
            return f"more than {self.most_words:,} words"
        if wrong := self._mean_word(words):
            return wrong
        most = self.most_symbols * len(words)
        if document.text.count("#") > most or sum(map(document.text.count, _ELLIPSIS)) > most:
            return f"more than {self.most_symbols:g} symbols a word"
        lines = [line.strip() for line in document.text.splitlines() if line.strip()]
        if sum(line.startswith(_BULLETS) for line in lines) > self.most_bullets * len(lines):
            return f"more than {self.most_bullets:.0%} of the lines start with a bullet"
        if sum(line.endswith(_ELLIPSIS) for line in lines) > self.most_ellipses * len(lines):
            return f"more than {self.most_ellipses:.0%} of the lines end with an ellipsis"
        if sum(map(bool, map(_LETTER.search, words))) < self.fewest_alphabetic * len(words):
            return f"less than {self.fewest_alphabetic:.0%} of the words hold a letter"
        if self.fewest_stop_words:
            present = {word.strip(_PUNCTUATION).lower() for word in words} & set(self.stop_words)
            if len(present) < self.fewest_stop_words:
                return f"fewer than {self.fewest_stop_words} stop words"
        return None

    def _mean_word(self, words: list[str]) -> str | None:
        """Return the reason to drop a document for its mean word length, or None."""
        spaced = [word for word in words if not unicode.is_unspaced(word[0])]
        if 2 * len(spaced) < len(words):
            return None
        mean = sum(map(len, spaced)) / max(1, len(spaced))
        if mean < self.shortest_mean_word:
            return f"mean word shorter than {self.shortest_mean_word:g}"
        if mean > self.longest_mean_word:
            return f"mean word longer than {self.longest_mean_word:g}"
        return None


DUPLICATE_LINES = 0.30
DUPLICATE_LINE_CHARACTERS = 0.20
# {n: maximum share of characters in all copies of the most frequent n-gram}
TOP_NGRAM = {2: 0.20, 3: 0.18, 4: 0.16}
# {n: maximum share of characters in words that belong to a repeated n-gram}
DUPLICATE_NGRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
_PARAGRAPH = re.compile(r"\n{2,}")


@dataclasses.dataclass(frozen=True)
class GopherRepetition(Filter):
    """Keeps documents that repeat few lines, paragraphs and word n-grams.

    The first occurrence does not count as a repetition. White space separates words and does not count as characters.
    A word in two repeated n-grams counts once. In scripts without spaces an n-gram has 2n characters (Chinese and
    Japanese) or 4n (Thai and others), about as much text as n English words.
    """

    kind: str = dataclasses.field(default="gopher_repetition", init=False)

    def keep(self, document: Document) -> str | None:
        text = document.text
        for what, parts in (("lines", text.splitlines()), ("paragraphs", _PARAGRAPH.split(text))):
            parts = [part.strip() for part in parts if part.strip()]
            repeated = _repeated(parts)
            if len(repeated) > DUPLICATE_LINES * len(parts):
                return f"more than {DUPLICATE_LINES:.0%} of the {what} are repeated"
            if sum(map(len, repeated)) > DUPLICATE_LINE_CHARACTERS * sum(map(len, parts)):
                return f"more than {DUPLICATE_LINE_CHARACTERS:.0%} of the characters are in repeated {what}"
        words = unicode.words(text)
        # Words become numbers once, so that n-grams can be counted with arrays.
        numbers: dict[str, int] = {}
        ids_W = np.array([numbers.setdefault(word, len(numbers)) for word in words], np.int64)
        characters_W = np.fromiter(map(len, words), np.int64, len(words))
        return _repeats_ngrams(ids_W, characters_W, unicode.characters_a_word(words))


def _repeated(parts: Sequence[str]) -> list[str]:
    """Return the parts that are equal to an earlier one."""
    seen: set[str] = set()
    return [part for part in parts if part in seen or seen.add(part)]


def _repeats_ngrams(ids_W: np.ndarray, characters_W: np.ndarray, scale: int) -> str | None:
    """Return the reason to drop a text with these words, or None.

    Args:
      ids_W: word ids, equal for equal words: int64 [words].
      characters_W: characters per word: int64 [words].
      scale: an n-gram has scale * n of these words; a power of two.
    """
    total = characters_W.sum()
    ends = np.concatenate([[0], np.cumsum(characters_W)])
    # Number each n-gram by the pair (number of its first part, number of the rest): exact, unlike a hash.
    unigrams, size = ids_W, 1
    while size < scale:
        unigrams, size = np.unique(_pairs(unigrams, unigrams, size), return_inverse=True)[1], 2 * size
    grams = unigrams
    for n in range(2, max(DUPLICATE_NGRAMS) + 1):
        pairs = _pairs(grams, unigrams, scale * (n - 1))
        if not len(pairs):
            return None
        _, first, grams, counts = np.unique(pairs, return_index=True, return_inverse=True, return_counts=True)
        if len(counts) == len(pairs):
            return None  # if no n-gram repeats, no longer one does
        if n in TOP_NGRAM:
            lengths = ends[first + scale * n] - ends[first]
            top = np.flatnonzero(counts == counts.max())  # if several are most frequent, the longest decides
            if counts.max() * lengths[top].max() > TOP_NGRAM[n] * total:
                return f"one {n}-gram has more than {TOP_NGRAM[n]:.0%} of the characters"
        elif characters_W[_covered(np.setdiff1d(np.arange(len(pairs)), first), scale * n, len(ids_W))].sum() > (
            DUPLICATE_NGRAMS[n] * total
        ):
            return f"more than {DUPLICATE_NGRAMS[n]:.0%} of the characters are in repeated {n}-grams"
    return None


def _pairs(first: np.ndarray, second: np.ndarray, distance: int) -> np.ndarray:
    """Return a number for each pair of an n-gram and the one `distance` words later; int64."""
    second = second[distance:]
    return first[: len(second)] * (second.max(initial=0) + 1) + second


def _covered(starts: np.ndarray, n: int, words: int) -> np.ndarray:
    """Return whether each word is in an n-gram that begins at one of `starts`: bool [words]."""
    change = np.zeros(words + 1, np.int64)
    np.add.at(change, starts, 1)
    np.add.at(change, starts + n, -1)
    return np.cumsum(change[:-1]) > 0
