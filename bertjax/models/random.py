"""Random bits on the device, from a scalar key for the whole array or from one key for each of its rows.

With one key per row, the bits do not depend on how the rows are split over devices and micro-batches.
"""

import jax
import jax.numpy as jnp


def split(key: jax.Array, number: int) -> jax.Array:
    """Return keys [number] or [number, B], from a scalar key or from keys [B]."""
    if key.ndim == 0:
        return jax.random.split(key, number)
    return jax.vmap(lambda row_key: jax.random.split(row_key, number), out_axes=1)(key)


def bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return random uint32 of a shape; its first axis is B if the keys are [B]."""
    if key.ndim == 0:
        return jax.random.bits(key, shape, jnp.uint32)
    return jax.vmap(lambda row_key: jax.random.bits(row_key, shape[1:], jnp.uint32))(key)
