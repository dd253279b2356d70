"""Sentence chunks for pair formats, the choice of partners from elsewhere, and the trimming of pairs to a row.

Trimming takes token by token, always from the longer segment.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from bertjax.data.framing import kept_of_pair
from bertjax.data.random import bits

TRIMS = ("random_end", "outer_ends")

# 32-bit random words drawn at a time; each takes about a hundred bytes.
WORDS_AT_ONCE = 1 << 20

Range = tuple[np.ndarray, np.ndarray] | np.ndarray


def trimmed(a: Range, b: Range, room: int, trim: str, seed: int, keys: np.ndarray) -> tuple[Range, Range]:
    """Cut A and B so that together they have at most `room` tokens and neither is empty.

    Args:
      a, b: starts and stops, int64 [M] each.
      room: tokens for A and B, at least 2.
      trim: `random_end` tosses a coin for every token to remove, front or back (as in Devlin et al.'s 2019 code);
        `outer_ends` removes A's front and B's end.
      seed: seed for the coins.
      keys: int64 [M], one random key per pair.
    """
    a_length, b_length = a[1] - a[0], b[1] - b[0]
    a_kept, b_kept = kept_of_pair(a_length, b_length, room)
    a_cut, b_cut = a_length - a_kept, b_length - b_kept
    a_front, b_front = a_cut, np.zeros_like(b_cut)
    if trim == "random_end":
        a_front, b_front = _heads(seed, "pairs/trim_a", keys, a_cut), _heads(seed, "pairs/trim_b", keys, b_cut)
    return (a[0] + a_front, a[1] - (a_cut - a_front)), (b[0] + b_front, b[1] - (b_cut - b_front))


def _heads(seed: int, stream: str, keys: np.ndarray, tosses: np.ndarray) -> np.ndarray:
    """Count heads among `tosses` fair coins per pair, 32 coins per random word.

    Random words are numbered across all pairs, so time is linear in the total tosses. Padding every pair to the longest
    would let a single 1 MB line (a log, a table) slow down all others.
    """
    heads, words = np.zeros_like(tosses), -(-tosses // 32)
    ends = np.cumsum(words)
    for start in range(0, int(words.sum()), WORDS_AT_ONCE):
        numbers = np.arange(start, min(start + WORDS_AT_ONCE, ends[-1]))
        pair = np.searchsorted(ends, numbers, side="right")
        word = numbers - (ends - words)[pair]
        left = np.minimum(tosses[pair] - 32 * word, 32).astype(np.uint64)  # coins used of this word's 32
        coins = bits(seed, stream, 0, keys[pair], word) & ((np.uint64(1) << left) - np.uint64(1))
        heads += np.bincount(pair, np.bitwise_count(coins), len(heads)).astype(heads.dtype)
    return heads


# (stream name, int64 [S] sentences) -> float64 [S] in [0, 1), a function of stream, sentence and seed.
Share = Callable[[str, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Chunks:
    """S chunks, one per starting sentence, each with two runs: first..middle-1 and middle..stop-1.

    Attributes:
      first, middle, stop: int64 [S], sentences; middle = stop for a single-sentence chunk.
      partner_tokens: int64 [S], minimum tokens, at least 1, for a run from elsewhere that replaces the second run.
    """

    first: np.ndarray
    middle: np.ndarray
    stop: np.ndarray
    partner_tokens: np.ndarray

    def __getitem__(self, indices: np.ndarray) -> "Chunks":
        return Chunks(self.first[indices], self.middle[indices], self.stop[indices], self.partner_tokens[indices])


def below(share: np.ndarray, size: int | np.ndarray) -> np.ndarray:
    """Map random numbers in [0, 1) to integers in range(size)."""
    return (share * size).astype(np.int64)


def apart(chunks: Chunks, begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the sentences in a chunk's document before and after its first run, without the adjacent ones."""
    return np.maximum(chunks.first - 1 - begins, 0), np.maximum(ends - chunks.middle - 1, 0)


def in_another(bounds: np.ndarray, documents: np.ndarray, chunks: Chunks, owner: np.ndarray, share: Share) -> Range:
    """Draw a sentence from another document for each chunk; also return that document's end; int64 [C]."""
    begins, ends = _another(documents, chunks, owner, share)
    return begins + below(share("start", chunks.first), ends - begins), ends


def in_another_with_room(
    bounds: np.ndarray, documents: np.ndarray, chunks: Chunks, owner: np.ndarray, share: Share
) -> Range:
    """Like `in_another`, but leave `partner_tokens` after the sentence if the document has that many; int64 [C]."""
    begins, ends = _another(documents, chunks, owner, share)
    too_late = _reach(bounds, begins, ends, bounds[ends] - bounds[begins] - chunks.partner_tokens + 1)
    return begins + below(share("start", chunks.first), too_late - begins), ends


def _another(documents: np.ndarray, chunks: Chunks, owner: np.ndarray, share: Share) -> Range:
    """Draw another document for each chunk; return its first sentence and its end; int64 [C]."""
    other = below(share("document", chunks.first), len(documents) - 2)
    other += other >= owner  # skip the chunk's own document: uniform without rejection
    return documents[other], documents[other + 1]


def in_the_same(bounds: np.ndarray, documents: np.ndarray, chunks: Chunks, owner: np.ndarray, share: Share) -> Range:
    """Draw a sentence in the same document, not adjacent to the first run; also return where a run must end; [C]."""
    begins, ends = documents[owner], documents[owner + 1]
    before, after = apart(chunks, begins, ends)
    # One draw over the sentences before and after, as if they were adjacent.
    drawn = below(share("start", chunks.first), before + after)
    is_before = drawn < before
    first = np.where(is_before, begins + drawn, chunks.middle + 1 + drawn - before)
    return first, np.where(is_before, chunks.first - 1, ends)


def partners(bounds, documents, chunks: Chunks, owner: np.ndarray, place, share: Share) -> Range:
    """Return a run of sentences from elsewhere for each chunk, with `partner_tokens` or more where possible.

    Args:
      bounds, documents: int64, as `Split.sentences` and `Split.documents`.
      chunks: C chunks.
      owner: int64 [C], each chunk's document.
      place: one of `PairFormat.places`; returns a first sentence for each chunk, and where a run must end.
      share: random number generator.

    Returns:
      First sentences and stops, int64 [C].
    """
    first, last = place(bounds, documents, chunks, owner, share)
    tokens = chunks.partner_tokens
    return first, _reach(bounds, first, np.minimum(first + tokens, last), tokens)


def _reach(bounds: np.ndarray, first: np.ndarray, last: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Find, by bisection, the first sentence after `first` that starts at least `tokens` later, at most `last`.

    `np.searchsorted` over all bounds would touch pages all over the memory map.
    """
    low, high, reached = first + 1, last, bounds[first] + tokens
    while (low < high).any():
        middle = (low + high) // 2
        is_before = (low < high) & (bounds[middle] < reached)
        low, high = np.where(is_before, middle + 1, low), np.where(is_before, high, middle)
    return low
