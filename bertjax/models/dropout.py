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

import math

import jax
import jax.numpy as jnp


def split(key: jax.Array, number: int) -> jax.Array:
    """Return keys [number] from a scalar key, or [number, B] from keys [B]; new-style ones also from old-style ones."""
    # Those of `jax.random.PRNGKey` are numbers, with one more axis.
    key = key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
    if key.ndim == 0:
        return jax.random.split(key, number)
    return jax.vmap(lambda row_key: jax.random.split(row_key, number), out_axes=1)(key)


def bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return random uint32 of the given shape; with keys [B], the first axis must be B."""
    if key.ndim == 0:
        return jax.random.bits(key, shape, jnp.uint32)
    return jax.vmap(lambda row_key: jax.random.bits(row_key, shape[1:], jnp.uint32))(key)


BYTES, _BYTE_VALUES = 4, 256  # of a word, of a byte
# From this rate on, which rounds to 1, nothing would be kept.
LEAST_TO_DROP_ALL = 1 - 0.5 / _BYTE_VALUES
# Rows up to the first length form one group of keys; longer rows are split into groups of the second length.
LONGEST_GROUP, GROUP = 2048, 512


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zero a random share of `x` [B, N, ...] and rescale the rest to keep the mean; without a key, return `x`.

    Args:
      key: scalar, or keys [B].
    """
    if key is None or not drops(rate):
        return x
    rows, length, *others = x.shape
    # A word decides four elements of the second axis, so concatenated tiles of hidden states stay aligned.
    seeds_B2 = seeds_of(key, rows, 1)[:, 0]
    before, within = (seeds_B2[:, word].reshape(rows, 1, *[1] * len(others)) for word in range(2))
    place = jnp.arange(words_for(length), dtype=jnp.int32).reshape(-1, *[1] * len(others))
    other = jnp.arange(math.prod(others), dtype=jnp.int32).reshape(others)
    hashed = words(before, within, place, other, words_for(length))
    return _dropped(x, keeps(hashed, rate, axis=1)[:, :length], rate)


def attention_dropout(
    probabilities_BHQT: jax.Array, rate: float, seeds_BH2: jax.Array | None, columns_BQ: jax.Array | None = None
) -> jax.Array:
    """Apply dropout to attention probabilities by the words of `seeds_of`; without any, return the probabilities.

    Args:
      columns_BQ: int, columns of the queries; the first Q tokens by default.
    """
    if seeds_BH2 is None or not drops(rate):
        return probabilities_BHQT
    rows, heads, queries, tokens = probabilities_BHQT.shape
    columns_BQ = jnp.arange(queries)[None] if columns_BQ is None else columns_BQ
    before_BH11, within_BH11 = seeds_BH2[..., 0, None, None], seeds_BH2[..., 1, None, None]
    keys = keys_per_group(tokens)
    word_W = jnp.arange(tokens // keys * words_for(keys), dtype=jnp.int32)
    query_B1Q1 = columns_BQ[:, None, :, None].astype(jnp.int32)
    words_BHQW = words(before_BH11, within_BH11, query_B1Q1, word_W, tokens)
    words_BHQGW = words_BHQW.reshape(rows, heads, queries, tokens // keys, words_for(keys))
    keeps_BHQT = keeps(words_BHQGW, rate, axis=-1)[..., :keys].reshape(rows, heads, queries, tokens)
    return _dropped(probabilities_BHQT, keeps_BHQT, rate)


def seeds_of(key: jax.Array, rows: int, heads: int) -> jax.Array:
    """Return the int32 seed words [B, H, 2] for each row and head.

    Args:
      key: scalar, or keys [B].
    """
    return jax.lax.bitcast_convert_type(bits(key, (rows, heads, 2)), jnp.int32)


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


def drops(rate: float) -> bool:
    """Return whether a rate drops anything; below 1/512 it rounds to 0.

    Without this test, 256 kept values out of 256, shifted to the top of a word, would wrap around to "keep nothing".
    """
    return _kept_bytes(rate) < _BYTE_VALUES


def inverse_of_kept_share(rate: float) -> float:
    """Return the scale of kept elements: the exact inverse of the kept share, a multiple of 1/256."""
    return _BYTE_VALUES / _kept_bytes(rate)


def _dropped(x: jax.Array, keeps: jax.Array, rate: float) -> jax.Array:
    return jnp.where(keeps, x * inverse_of_kept_share(rate), 0.0).astype(x.dtype)


def _kept_bytes(rate: float) -> int:
    """Return how many of a byte's 256 values keep an element."""
    return round((1.0 - rate) * _BYTE_VALUES)


def _constant(like: jax.Array, value: int) -> jax.Array:
    """Return a 32-bit number as int32."""
    return jnp.asarray((value + (1 << 31)) % (1 << 32) - (1 << 31), like.dtype)
