"""Trimming for pairs longer than a row: token by token, always from the longer segment."""

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
