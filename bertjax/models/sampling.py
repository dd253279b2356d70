"""Sampling of classes from logits, on the device."""

import jax
import jax.numpy as jnp

from bertjax.models.config import VOCABULARY_MULTIPLE
from bertjax.models.random import bits

# A share in [0, 1) with this many bits, times a positive float32, is always less than that float.
_SHARE_BITS = 23


def sample(logits: jax.Array, key: jax.Array) -> jax.Array:
    """Return a class for each row of logits, drawn with the probabilities of their softmax; int32 [B, ...].

    The distribution function is inverted at one uniform number per row; Gumbel noise would need one per class. A tile
    of classes is chosen first and then the class in it, so no cumulative sum runs over the whole vocabulary. A class of
    probability 0, such as the padding of the vocabulary, is never drawn.

    Args:
      logits: float32, [B, ..., V], V a multiple of 128.
      key: a key, or keys [B], one for each row of the batch.
    """
    *leading, classes = logits.shape
    tiles = classes // VOCABULARY_MULTIPLE
    weights = jnp.exp(logits - logits.max(axis=-1, keepdims=True)).reshape(*leading, tiles, VOCABULARY_MULTIPLE)
    share = (bits(key, tuple(leading)) >> (32 - _SHARE_BITS)).astype(jnp.float32) * 2.0**-_SHARE_BITS
    tile, rest = _invert(weights.sum(axis=-1), share)
    within = jnp.take_along_axis(weights, tile[..., None, None], axis=-2)[..., 0, :]
    return tile * VOCABULARY_MULTIPLE + _invert(within, rest)[0]


def _invert(weights: jax.Array, share: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the entry of `weights` [..., n] that contains `share` [...] of their sum, and the share of that entry."""
    sums = jnp.cumsum(weights, axis=-1)
    target = share * sums[..., -1]
    entry = jnp.sum(sums <= target[..., None], axis=-1)
    chosen = jnp.take_along_axis(weights, entry[..., None], axis=-1)[..., 0]
    before = jnp.take_along_axis(sums, entry[..., None], axis=-1)[..., 0] - chosen
    return entry, jnp.clip((target - before) / chosen, 0.0, 1.0 - 2.0**-_SHARE_BITS)
