"""Dropout, and the random keys that it draws with. `bertjax.models.dropout_words` decides what is dropped."""

import math

import jax
import jax.numpy as jnp

from bertjax.models.dropout_words import BYTE_VALUES, inverse_of_kept_share, keeps, keys_per_group, words, words_for


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


def drops(rate: float) -> bool:
    """Return whether a rate drops anything; below 1/512 it rounds to 0.

    Without this test, 256 kept values out of 256, shifted to the top of a word, would wrap around to "keep nothing".
    """
    return rate > 0.5 / BYTE_VALUES


def _dropped(x: jax.Array, keeps: jax.Array, rate: float) -> jax.Array:
    return jnp.where(keeps, x * inverse_of_kept_share(rate), 0.0).astype(x.dtype)
