"""Activations of few bits while a model is trained."""

import jax
import jax.numpy as jnp


def rounded(rows: jax.Array, count: int) -> jax.Array:
    """Return what a dense layer reads, [N, in], in `count` bits, with the gradient of the floats; 0 bits: as it is.

    There are 2^(count - 1) - 1 levels to either side of 0. Those of a row, which is one token, span its own largest
    value, so that no other token matters and nothing is kept between steps. Q8BERT (Zafrir et al., 2019, arXiv
    1910.06188, section 3) has one range for each activation, a moving average.
    """
    if not count:
        return rows
    values = rows.astype(jnp.float32)
    scale = jnp.max(jnp.abs(values), axis=-1, keepdims=True) / (2 ** (count - 1) - 1)
    nearest = jnp.round(values / jnp.where(scale > 0, scale, 1.0)) * scale
    return rows + jax.lax.stop_gradient(nearest.astype(rows.dtype) - rows)
