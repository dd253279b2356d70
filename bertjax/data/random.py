"""Stateless randomness: a hash of (seed, stream, epoch, example, token) instead of generators.

Each use has its own named stream, so a new use never changes the numbers of another. All inputs broadcast like numpy
arrays.
"""

import functools
import hashlib

import numpy as np
from numpy.typing import ArrayLike

# Increment of SplitMix64: 2**64 divided by the golden ratio, as an odd number.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FEISTEL_ROUNDS = 6
_SMALLEST_HALF = 3  # bits; a smaller network would prefer some orders of few rows over others


def bits(seed: int, stream: str, epoch: ArrayLike, example_ids: ArrayLike, token_index: ArrayLike) -> np.ndarray:
    """Return 32 random bits for every (epoch, example, token), uint32 in the broadcast shape.

    Words are absorbed one after the other, each by one SplitMix64 step (Steele, Lea and Flood, "Fast splittable
    pseudorandom number generators", OOPSLA 2014, fig. 17). One changed input bit changes half the output bits.
    """
    return bits_after(states(seed, stream, epoch, example_ids), token_index)


def states(seed: int, stream: str, *words: ArrayLike) -> np.ndarray:
    """Return the state after the first words, uint64; `bits_after` adds the last word.

    An example's tokens share the state, so it is computed once per example.
    """
    with np.errstate(over="ignore"):  # arithmetic is modulo 2**64 on purpose; numpy warns about it for scalars
        return functools.reduce(_absorb, words, _start(seed % 2**64, stream))


def bits_after(states: np.ndarray, words: ArrayLike) -> np.ndarray:
    """Return the bits after absorbing the last words into `states`, uint32 in the broadcast shape."""
    with np.errstate(over="ignore"):
        return _high(_absorb(states, words))


def uniform(seed: int, stream: str, epoch: ArrayLike, example_ids: ArrayLike, token_index: ArrayLike) -> np.ndarray:
    """Return uniform multiples of 2**-32 in [0, 1), float64, from `bits` with the same arguments."""
    return bits(seed, stream, epoch, example_ids, token_index) * 2.0**-32


def permuted(seed: int, stream: str, epoch: ArrayLike, positions: ArrayLike, size: int) -> np.ndarray:
    """Permute `positions` in range(size) at random, with one permutation per epoch; int64.

    A Feistel network permutes range(n), where n >= size is the smallest power of four from 64 up. Values outside the
    range are permuted again until they are inside ("cycle walking": Black and Rogaway, "Ciphers with arbitrary finite
    domains", CT-RSA 2002). So no table is needed, and every position costs the same.
    """
    epoch, places = np.atleast_1d(*np.broadcast_arrays(epoch, np.asarray(positions).astype(np.uint64)))
    # The domain is less than 4 times a large `size`, so cycle walking takes fewer than 4 tries on average.
    half = np.uint64(max(_SMALLEST_HALF, ((size - 1).bit_length() + 1) // 2))
    rounds = states(seed, stream, epoch, np.arange(_FEISTEL_ROUNDS)[:, None])
    places = _feistel(rounds, places, half)
    while len(outside := np.flatnonzero(places >= size)):
        places[outside] = _feistel(rounds[:, outside], places[outside], half)
    return places.astype(np.int64)


def _feistel(rounds: np.ndarray, places: np.ndarray, half: np.uint64) -> np.ndarray:
    """Map `places` by a bijection on range(4**half); uint64 [n].

    Args:
      rounds: state per round, uint64 [rounds, n].
      half: bits in each half of a value.
    """
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = places >> half, places & mask
    for state in rounds:
        # A Feistel round can be undone whatever function is XORed in, so collisions are impossible.
        left, right = right, left ^ (_absorb(state, right) >> np.uint64(32) & mask)
    return left << half | right


@functools.lru_cache
def _start(seed: int, stream: str) -> np.ndarray:
    name = hashlib.blake2b(stream.encode(), digest_size=8).digest()
    return _absorb(np.uint64(int.from_bytes(name, "little")), np.uint64(seed))


def _absorb(state: np.ndarray | np.uint64, words: ArrayLike) -> np.ndarray:
    """Return the state after one SplitMix64 step. The input is not changed."""
    # Plus one: otherwise the word 0 would leave the state as it is.
    return mixed(state + _GOLDEN * (np.asarray(words).astype(np.uint64, copy=False) + np.uint64(1)))


def mixed(values: np.ndarray) -> np.ndarray:
    """Apply SplitMix64's finalizer: a bijection in which every output bit depends on all 64."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def _high(state: np.ndarray) -> np.ndarray:
    """Return the upper 32 of 64 bits."""
    return (state >> np.uint64(32)).astype(np.uint32)
