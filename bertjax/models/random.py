"""Random bits on the device, from one key for a whole array or from one key per row.

With one key per row, the bits do not depend on how rows are split over devices and micro-batches.
"""

import jax
import jax.numpy as jnp


def split(key: jax.Array, number: int) -> jax.Array:
    """Return keys [number] from a scalar key, or [number, B] from keys [B]."""
    if key.ndim == 0:
        return jax.random.split(key, number)
    return jax.vmap(lambda row_key: jax.random.split(row_key, number), out_axes=1)(key)


def bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return random uint32 of the given shape; with keys [B], the first axis must be B."""
    if key.ndim == 0:
        return jax.random.bits(key, shape, jnp.uint32)
    return jax.vmap(lambda row_key: jax.random.bits(row_key, shape[1:], jnp.uint32))(key)
