"""Sample classes from logits on the device."""

import jax
import jax.numpy as jnp

from bertjax.models.config import VOCABULARY_MULTIPLE
from bertjax.models.random import bits

# With 23 bits, a fraction in [0, 1) times a positive float32 is always strictly less than that float32.
_SHARE_BITS = 23


def sample(logits: jax.Array, key: jax.Array) -> jax.Array:
    """Sample a class from the softmax of each row of logits; int32 [B, ...].

    The cumulative distribution is inverted at one uniform number per row; the Gumbel trick would need one random number
    per class. A tile of classes is sampled first, then a class in the tile, which avoids a cumulative sum over the
    whole vocabulary. Classes with probability 0, such as vocabulary padding, are never drawn.

    Args:
      logits: float32, [B, ..., V], V a multiple of 128.
      key: one key, or keys [B], one per batch row.
    """
    *leading, classes = logits.shape
    tiles = classes // VOCABULARY_MULTIPLE
    # Subtract the maximum so that exp cannot overflow; the common factor cancels in the sampling.
    weights = jnp.exp(logits - logits.max(axis=-1, keepdims=True)).reshape(*leading, tiles, VOCABULARY_MULTIPLE)
    share = (bits(key, tuple(leading)) >> (32 - _SHARE_BITS)).astype(jnp.float32) * 2.0**-_SHARE_BITS
    tile, rest = _invert(weights.sum(axis=-1), share)
    within = jnp.take_along_axis(weights, tile[..., None, None], axis=-2)[..., 0, :]
    return tile * VOCABULARY_MULTIPLE + _invert(within, rest)[0]


def _invert(weights: jax.Array, share: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the index of the entry of `weights` [..., n] at the fraction `share` [...] of the cumulative sum.

    Also return how far into that entry the fraction is, in [0, 1): it is uniform again and selects the class in the
    tile.
    """
    sums = jnp.cumsum(weights, axis=-1)
    target = share * sums[..., -1]
    entry = jnp.sum(sums <= target[..., None], axis=-1)
    chosen = jnp.take_along_axis(weights, entry[..., None], axis=-1)[..., 0]
    before = jnp.take_along_axis(sums, entry[..., None], axis=-1)[..., 0] - chosen
    return entry, jnp.clip((target - before) / chosen, 0.0, 1.0 - 2.0**-_SHARE_BITS)
