"""Drawing on the device, from a scalar key for the whole array or from one key for each of its rows.

Keys of rows make a draw independent of how the rows are spread over devices and micro-batches.
"""

import jax
import jax.numpy as jnp


def split(key: jax.Array, number: int) -> jax.Array:
    """Keys [number] or [number, B], from a scalar key or from keys [B]."""
    if key.ndim == 0:
        return jax.random.split(key, number)
    return jax.vmap(lambda row_key: jax.random.split(row_key, number), out_axes=1)(key)


def bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Random uint32 of a shape, whose first axis is B where the keys are [B]."""
    if key.ndim == 0:
        return jax.random.bits(key, shape, jnp.uint32)
    return jax.vmap(lambda row_key: jax.random.bits(row_key, shape[1:], jnp.uint32))(key)
