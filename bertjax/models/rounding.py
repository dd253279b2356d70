"""Quantization-aware training: round weights and activations to a few bits."""

import jax
import jax.numpy as jnp
import numpy as np


def rounded(values: jax.Array, bits: int | np.ndarray, axis: int = -1) -> jax.Array:
    """Round values to few bits; the gradient is passed through unchanged.

    There are 2^(bits - 1) - 1 levels on each side of 0, up to the largest absolute value along the axis. The gradient
    is the straight-through estimator (Bengio et al., 2013, arXiv 1308.3432).

    Args:
      values: floats.
      bits: one number, or an array that broadcasts against the largest values.
      axis: values along this axis share one scale.
    """
    floats, levels = values.astype(jnp.float32), np.asarray(2.0 ** (bits - 1) - 1, np.float32)
    scale = jnp.max(jnp.abs(floats), axis=axis, keepdims=True) / levels
    nearest = jnp.round(floats / jnp.where(scale > 0, scale, 1.0)) * scale
    # Straight-through estimator: forward this is `nearest`, backward the identity.
    return values + jax.lax.stop_gradient(nearest.astype(values.dtype) - values)
