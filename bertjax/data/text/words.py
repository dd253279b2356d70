"""Word boundaries in token sequences, and hashes for word n-grams."""

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
    """W words that together cover every token that is not special.

    A word is a token plus the tokens that continue it. It ends at a special token or a boundary. A stretch is a maximal
    run of words with no special token or boundary between them; phrases and spans never leave it.

    Attributes:
      starts: int64 [W], index of each word's first token.
      lengths: int64 [W], tokens per word.
      stretch_starts: int64 [S], index of each stretch's first word.
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
        """Index of each word's stretch; int64 [W]."""
        return np.repeat(np.arange(len(self.stretch_starts)), self.stretch_lengths)

    @functools.cached_property
    def stretch_lengths(self) -> np.ndarray:
        """Words per stretch; int64 [S]."""
        return np.diff(self.stretch_starts, append=len(self.starts))

    @functools.cached_property
    def room(self) -> np.ndarray:
        """Words left in the stretch, counting from each word and including it; int64 [W]."""
        return (self.stretch_starts + self.stretch_lengths)[self.stretches] - np.arange(len(self.starts))

    def hashes(self, tokens: np.ndarray, vocab_size: int, longest: int) -> Iterator[np.ndarray]:
        """Yield, for n = 1 .. `longest`, a hash of the n words that start at each word; uint64 [W].

        A hash is meaningless if its stretch has fewer than n words left (see `room`).
        """
        if not len(self.starts):
            yield from (np.zeros(0, np.uint64) for _ in range(longest))
            return
        place = np.arange(self.lengths.sum()) - np.repeat(np.cumsum(self.lengths) - self.lengths, self.lengths)
        index = np.repeat(self.starts, self.lengths) + place
        # Polynomial hashes mod 2**64, with different bases inside and between words: "ab c" and "a bc" must differ.
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
    """Return a fixed random 64-bit number for each id; uint64 [vocab_size]."""
    high, low = (bits(0, f"words/{half}", 0, np.arange(vocab_size), 0).astype(np.uint64) for half in ("high", "low"))
    return high << np.uint64(32) | low
