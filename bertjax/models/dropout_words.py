"""Dropout from a hash of the element's location, so any program can compute any decision on its own.

Two words come from the key of a row (and head, in attention). The decision for an element, or for a query and key, is a
function of these words and its place in the row. So no mask is saved for the backward pass, kernels and plain attention
draw the same, and with one key per row devices and micro-batches do not change a draw.

Each hashed word serves four decisions, one per byte, which quarters the hashing. The drop rate is therefore rounded to
a multiple of 1/256, and the scale is the exact inverse of the kept share. In attention, a row's keys are one group;
long rows have several, which a kernel reads one after another. The hash is `triple32` (Wellons, 2018, "Prospecting for
Hash Functions"), a permutation of 32-bit numbers with three multiplications. One seed word enters before it and one
inside it, so two heads whose counters collide after the first do not collide after the second.
"""

import jax
import jax.numpy as jnp

BYTES, BYTE_VALUES = 4, 256  # of a word, of a byte
# From this rate on, which rounds to 1, nothing would be kept.
LEAST_TO_DROP_ALL = 1 - 0.5 / BYTE_VALUES
# Rows up to the first length form one group of keys; longer rows are split into groups of the second length.
LONGEST_GROUP, GROUP = 2048, 512


def keys_per_group(tokens: int) -> int:
    """Number of keys per group in rows of T tokens: T, or a divisor of it."""
    return tokens if tokens <= LONGEST_GROUP or tokens % GROUP else GROUP


def words_for(decisions: int) -> int:
    """Number of words that hold this many decisions."""
    return -(-decisions // BYTES)


def words(before: jax.Array, within: jax.Array, place: jax.Array, number: jax.Array, places: int) -> jax.Array:
    """Return the hashed int32 words of a row and head, broadcast over all arguments.

    Args:
      before, within: int32, the two seed words for the row and head.
      place: int32, less than `places`; in attention the query column.
      number: int32, index of the word within its place; in attention these words cover the keys of all groups.
      places: T in attention.
    """
    x = (number * places + place) ^ before
    x = (x ^ jax.lax.shift_right_logical(x, _constant(x, 17))) * _constant(x, 0xED5AD4BB)
    x = (x ^ jax.lax.shift_right_logical(x, _constant(x, 11))) * _constant(x, 0xAC4C1B51) + within
    x = (x ^ jax.lax.shift_right_logical(x, _constant(x, 15))) * _constant(x, 0x31848BAB)
    return x ^ jax.lax.shift_right_logical(x, _constant(x, 14))


def keeps(words: jax.Array, rate: float, axis: int) -> jax.Array:
    """Unpack words into decisions, True to keep: four times as many along the axis.

    Byte b of word w decides element `b * len(words) + w`, so the four parts are concatenated, not interleaved.
    """
    # Shift the byte to the top, where a signed comparison decides by it alone: the limit's lower bits are 0.
    limit = _constant(words, (_kept_bytes(rate) << 24) - (1 << 31))
    decisions = [words << _constant(words, 24 - 8 * byte) < limit for byte in range(BYTES)]
    return jnp.concatenate(decisions, axis=axis)


def inverse_of_kept_share(rate: float) -> float:
    """Return the scale of kept elements: the exact inverse of the kept share, a multiple of 1/256."""
    return BYTE_VALUES / _kept_bytes(rate)


def _kept_bytes(rate: float) -> int:
    """Return how many of a byte's 256 values keep an element."""
    return round((1.0 - rate) * BYTE_VALUES)


def _constant(like: jax.Array, value: int) -> jax.Array:
    """Return a 32-bit number as int32."""
    return jnp.asarray((value + (1 << 31)) % (1 << 32) - (1 << 31), like.dtype)
