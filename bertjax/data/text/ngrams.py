"""Word and n-gram hashes, for comparing texts in any script.

Texts are normalized with NFKC and case-folded first. A word is a run of letters, marks and digits. In scripts without
spaces (`unicode.WITHOUT_SPACES`) each character is a word, so n-grams are character n-grams. A hash depends only on
the text, never on the process, the machine or other texts.
"""

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from bertjax.data.random import mixed
from bertjax.data.text import unicode

BLOCK = 1 << 20
_SPACE = re.compile(r"\s")
_PLACE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that its powers are never zero
_WORD = np.uint64(0xD1342543DE82EF95)
_SEPARATOR, _LETTER, _ALONE = range(3)
_CHARACTERS = 0x323B0  # no living script has letters above this code point


def word_hashes(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Hash every word in D texts.

    Memory: 8 bytes per word, plus the working arrays for `BLOCK` characters.

    Returns:
      Hashes, uint64 [words], and the word count per text, int64 [D].
    """
    hashes, counts_D = [np.zeros(0, np.uint64)], np.zeros(len(texts), np.int64)
    for owners, block in _blocks(texts):
        words, counts = _word_hashes(block)
        hashes.append(words)
        np.add.at(counts_D, owners, counts)
    return np.concatenate(hashes), counts_D


def _blocks(texts: Sequence[str]) -> Iterator[tuple[list[int], list[str]]]:
    """Yield text indices and texts, about `BLOCK` characters at a time; a longer text is cut at white space."""
    owners, block, size = [], [], 0
    for owner, text in enumerate(texts):
        start = 0
        while start < len(text):
            space = _SPACE.search(text, start + BLOCK, start + 2 * BLOCK)
            stop = space.end() if space else start + 2 * BLOCK
            owners.append(owner)
            block.append(text[start:stop])
            size += stop - start
            start = stop
            if size >= BLOCK:
                yield owners, block
                owners, block, size = [], [], 0
    if block:
        yield owners, block


def _word_hashes(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Do the work of `word_hashes` for one block."""
    normal = [unicodedata.normalize("NFKC", text).casefold() + "\n" for text in texts]
    codes = np.frombuffer("".join(normal).encode("utf-32-le"), "<u4")
    kinds = _kinds()[np.minimum(codes, _CHARACTERS)]
    is_letter = kinds == _LETTER
    # A word starts at the first letter after anything else, and at every character that is a word alone.
    starts_word = is_letter.copy()
    starts_word[1:] &= ~is_letter[:-1]
    starts_word |= kinds == _ALONE
    inside = np.flatnonzero(kinds)
    starts = np.flatnonzero(starts_word[inside])
    ends_D = np.cumsum(np.fromiter(map(len, normal), np.int64, len(normal)))
    counts_D = np.diff(np.searchsorted(inside[starts], ends_D), prepend=0)
    if not len(starts):
        return np.zeros(0, np.uint64), counts_D
    lengths = np.diff(starts, append=len(inside))
    places = np.arange(len(inside)) - np.repeat(starts, lengths)
    # Polynomial hash, mod 2**64: code point times PLACE**(index + 1), summed per word.
    powers = np.cumprod(np.full(lengths.max(), _PLACE))
    return mixed(np.add.reduceat(codes[inside] * powers[places], starts)), counts_D


def words_a_word(text: str) -> int:
    """Return how many words of this module make up about one English word, see `unicode.characters_a_word`."""
    words = unicode.words(text)
    # Tibetan's syllables are words here; a mark that a text in another script quotes does not make it Tibetan.
    syllabic = sum(unicode.is_syllabic(word[0]) for word in words)
    return 1 if 2 * syllabic > len(words) else unicode.characters_a_word(words)


def ngram_hashes(words: np.ndarray, counts_D: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Hash every n-gram in D texts.

    A text with fewer than n words, but at least one, has a single n-gram: the whole text.

    Args:
      words: word hashes for all texts, uint64 [words].
      counts_D: word count per text.

    Returns:
      Hashes, uint64 [n-grams], and the n-gram count per text, int64 [D].
    """
    short_D = np.where((counts_D > 0) & (counts_D < n), n - counts_D, 0)
    padded = np.zeros(len(words) + short_D.sum(), np.uint64)
    padded[np.arange(len(words)) + np.repeat(np.cumsum(short_D) - short_D, counts_D)] = words
    size = max(0, len(padded) - n + 1)
    hashes = padded[:size].copy()
    for k in range(1, n):
        hashes *= _WORD
        hashes += padded[k : k + size]
    padded_D = counts_D + short_D
    grams_D = np.where(padded_D > 0, padded_D - n + 1, 0)
    # Drop the n - 1 positions at the end of each text whose n-gram would reach into the next text.
    first_D, first_gram_D = np.cumsum(padded_D) - padded_D, np.cumsum(grams_D) - grams_D
    return mixed(hashes[np.arange(grams_D.sum()) + np.repeat(first_D - first_gram_D, grams_D)]), grams_D


def are_among(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return whether each value is in `known`, which is sorted: bool [values]."""
    if not len(known):
        return np.zeros(len(values), bool)
    # A value behind all others gets the place len(known), which does not exist.
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return known[places] == values


@functools.cache
def _kinds() -> np.ndarray:
    """Return the role of each character: word separator, letter within a word, or a word alone; uint8 [chars + 1]."""
    kinds = np.zeros(_CHARACTERS + 1, np.uint8)
    kinds[:_CHARACTERS] = [unicodedata.category(chr(code))[0] in "LMN" for code in range(_CHARACTERS)]
    for first, last in set(unicode.WITHOUT_SPACES) - set(unicode.SYLLABIC):
        kinds[first : last + 1] *= _ALONE
    return kinds
