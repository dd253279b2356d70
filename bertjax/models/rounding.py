"""Weights and activations of few bits while a model is trained."""

import jax
import jax.numpy as jnp
import numpy as np


def rounded(values: jax.Array, bits: int | np.ndarray, axis: int = -1) -> jax.Array:
    """Return values in few bits, whose gradient is that of the floats.

    There are 2^(bits - 1) - 1 levels to either side of 0, up to the largest value along the axis. The gradient is the
    straight-through estimator (Bengio et al., 2013, arXiv 1308.3432).

    Args:
      values: floats.
      bits: one number, or an array that broadcasts against the largest values.
      axis: values along it share their levels.
    """
    floats, levels = values.astype(jnp.float32), np.asarray(2.0 ** (bits - 1) - 1, np.float32)
    scale = jnp.max(jnp.abs(floats), axis=axis, keepdims=True) / levels
    nearest = jnp.round(floats / jnp.where(scale > 0, scale, 1.0)) * scale
    return values + jax.lax.stop_gradient(nearest.astype(values.dtype) - values)
