"""The words of tokens, and hashes of runs of words."""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from bertjax.data.examples import Vocabulary
from bertjax.data.random import bits

_WITHIN_WORD = np.uint64(0x9E3779B97F4A7C15)  # odd, so that its powers are never zero
_BETWEEN_WORDS = np.uint64(0xD1342543DE82EF95)


@dataclasses.dataclass(frozen=True)
class Words:
    """W words that cover every token of a text that is not special.

    A word is a token and the tokens after it that continue it. It ends at a special token and at the end of a stretch.
    A stretch is a run of words without a special token or another boundary between them.

    Attributes:
      starts: int64 [W], index of the first token of each word.
      lengths: int64 [W], tokens of each word.
      stretch_starts: int64 [S], the first word of each stretch.
    """

    starts: np.ndarray
    lengths: np.ndarray
    stretch_starts: np.ndarray

    @classmethod
    def of(cls, tokens: np.ndarray, boundary: np.ndarray, vocabulary: Vocabulary) -> "Words":
        """Split tokens (int [n]) into words; a word and a stretch end before each token with `boundary` (bool [n])."""
        special = vocabulary.is_special[tokens]
        opens = boundary.copy()
        opens[1:] |= special[:-1]
        ordinary = np.flatnonzero(~special)
        is_start = (opens | ~vocabulary.continues_word[tokens])[ordinary]
        first = np.flatnonzero(is_start)
        starts = ordinary[first]
        return cls(starts, np.diff(first, append=len(ordinary)), np.flatnonzero(opens[starts]))

    @functools.cached_property
    def stretches(self) -> np.ndarray:
        """The stretch of each word; int64 [W]."""
        return np.repeat(np.arange(len(self.stretch_starts)), self.stretch_lengths)

    @functools.cached_property
    def stretch_lengths(self) -> np.ndarray:
        """Words of each stretch; int64 [S]."""
        return np.diff(self.stretch_starts, append=len(self.starts))

    @functools.cached_property
    def room(self) -> np.ndarray:
        """Words from each word to the end of its stretch, itself included; int64 [W]."""
        return (self.stretch_starts + self.stretch_lengths)[self.stretches] - np.arange(len(self.starts))

    def hashes(self, tokens: np.ndarray, vocab_size: int, longest: int) -> Iterator[np.ndarray]:
        """Yield for n = 1 .. `longest` a hash of the tokens of n words from each word on; uint64 [W].

        If a stretch has fewer than n words left (`room`), the hash is meaningless.
        """
        if not len(self.starts):
            yield from (np.zeros(0, np.uint64) for _ in range(longest))
            return
        place = np.arange(self.lengths.sum()) - np.repeat(np.cumsum(self.lengths) - self.lengths, self.lengths)
        index = np.repeat(self.starts, self.lengths) + place
        powers = np.cumprod(np.full(self.lengths.max(), _WITHIN_WORD))
        weighted = _token_hashes(vocab_size)[tokens[index]] * powers[place]
        words = np.add.reduceat(weighted, np.cumsum(self.lengths) - self.lengths)
        hashes = words
        yield hashes
        for n in range(1, longest):
            following = np.concatenate([words[n:], np.zeros(min(n, len(words)), np.uint64)])
            hashes = hashes * _BETWEEN_WORDS + following
            yield hashes


@functools.lru_cache(maxsize=1)
def _token_hashes(vocab_size: int) -> np.ndarray:
    """Return a constant random number of 64 bits for every id; uint64 [vocab_size]."""
    high, low = (bits(0, f"words/{half}", 0, np.arange(vocab_size), 0).astype(np.uint64) for half in ("high", "low"))
    return high << np.uint64(32) | low
