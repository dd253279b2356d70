"""Dropout on attention decided by a hash of (row, head, query, key), so that a kernel and the plain path draw the same.

The words of a row and head come from the row's key. The decision for a query and a key is then a function of these
words and of two columns: whoever needs it computes it, in any order and as often as needed. No mask is kept for the
backward pass, and neither devices nor micro-batches change a draw (with one key for each row, see `random`).

One hashed word serves four decisions, one by each of its bytes, as in `layers.dropout`: about four keys of one group.
The keys of a row are one group; those of a long row are several, which a kernel reads one after another. The hash is
`triple32` of Wellons (2018, "Prospecting for Hash Functions"), a permutation of 32-bit numbers with three products. One
word of the seed enters before it and one within, so that two heads whose counters meet after the first do not meet
after the second.
"""

import jax
import jax.numpy as jnp

from bertjax.models.random import BYTE_VALUES, bits, kept_bytes

_BYTES = 4  # of a word
# Rows up to the first length are one group of keys, longer ones groups of the second.
LONGEST_GROUP, GROUP = 2048, 512


def seeds_of(key: jax.Array, rows: int, heads: int) -> jax.Array:
    """Return the int32 words [B, H, 2] that all decisions of a row and head depend on.

    Args:
      key: scalar, or keys [B].
    """
    return jax.lax.bitcast_convert_type(bits(key, (rows, heads, 2)), jnp.int32)


def keys_per_group(tokens: int) -> int:
    """Number of keys of a group in rows of T tokens: T, or a divisor of it."""
    return tokens if tokens <= LONGEST_GROUP or tokens % GROUP else GROUP


def words_per_query(keys: int) -> int:
    """Number of words that hold the decisions of one query about the keys of a group."""
    return -(-keys // _BYTES)


def words(before: jax.Array, within: jax.Array, query: jax.Array, word: jax.Array, tokens: int) -> jax.Array:
    """Return the hashed int32 words for queries, in the shape to which all arguments broadcast.

    Args:
      before, within: int32, the two words of the row and head.
      query: int32, column of the query.
      word: int32, number of the word among those of all groups.
      tokens: T.
    """
    x = (word * tokens + query) ^ before
    x = (x ^ jax.lax.shift_right_logical(x, _constant(x, 17))) * _constant(x, 0xED5AD4BB)
    x = (x ^ jax.lax.shift_right_logical(x, _constant(x, 11))) * _constant(x, 0xAC4C1B51) + within
    x = (x ^ jax.lax.shift_right_logical(x, _constant(x, 15))) * _constant(x, 0x31848BAB)
    return x ^ jax.lax.shift_right_logical(x, _constant(x, 14))


def keeps(words: jax.Array, rate: float, axis: int) -> jax.Array:
    """Return the decisions of words, True to keep: four times as many along an axis that becomes the axis of keys.

    Byte b of word w decides key `b * len(words) + w`, so the four parts are only joined, never interleaved.
    """
    # The byte is moved to the top, where a signed comparison reads it before all others.
    limit = _constant(words, (kept_bytes(rate) << 24) - (1 << 31))
    shifted = [words << _constant(words, 24 - 8 * byte) for byte in range(_BYTES)]
    return jnp.concatenate([part < limit for part in shifted], axis=axis)


def inverse_of_kept_share(rate: float) -> float:
    """Return the scale of what is kept: the exact inverse of its share, a multiple of 1/256."""
    return BYTE_VALUES / kept_bytes(rate)


def dropout_by_hash(
    probabilities_BHQT: jax.Array, rate: float, key: jax.Array | None, columns_BQ: jax.Array | None = None
) -> jax.Array:
    """Zero a share of attention probabilities and scale the rest so that the mean is kept; see `layers.dropout`.

    Args:
      columns_BQ: int, columns of the queries; the first Q tokens by default.
    """
    if key is None or rate == 0.0:
        return probabilities_BHQT
    rows, heads, queries, tokens = probabilities_BHQT.shape
    seeds_BH2 = seeds_of(key, rows, heads)
    columns_BQ = jnp.arange(queries)[None] if columns_BQ is None else columns_BQ
    before_BH11, within_BH11 = seeds_BH2[..., 0, None, None], seeds_BH2[..., 1, None, None]
    keys = keys_per_group(tokens)
    word_W = jnp.arange(tokens // keys * words_per_query(keys), dtype=jnp.int32)
    query_B1Q1 = columns_BQ[:, None, :, None].astype(jnp.int32)
    words_BHQW = words(before_BH11, within_BH11, query_B1Q1, word_W, tokens)
    words_BHQGW = words_BHQW.reshape(rows, heads, queries, tokens // keys, words_per_query(keys))
    keeps_BHQT = keeps(words_BHQGW, rate, axis=-1)[..., :keys].reshape(rows, heads, queries, tokens)
    kept_BHQT = jnp.where(keeps_BHQT, probabilities_BHQT * inverse_of_kept_share(rate), 0.0)
    return kept_BHQT.astype(probabilities_BHQT.dtype)


def _constant(like: jax.Array, value: int) -> jax.Array:
    """Return a number of 32 bits as int32."""
    return jnp.asarray((value + (1 << 31)) % (1 << 32) - (1 << 31), like.dtype)
