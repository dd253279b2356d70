"""From the hidden states of tokens to one vector an example."""

import jax
import jax.numpy as jnp


def mean_of_examples(hidden_BTD: jax.Array, examples_BT: jax.Array, slots: int) -> jax.Array:
    """The mean of each example's hidden states, [CLS] and [SEP] included; float32 [B, N, D], 0 in an empty slot.

    That is Sentence-BERT's MEAN strategy (Reimers & Gurevych, 2019, section 3, arXiv 1908.10084), in a row of several
    examples.

    Args:
      hidden_BTD: of the last layer.
      examples_BT: as in a batch, 0 = padding.
      slots: N.
    """
    is_of_BTN = (examples_BT[..., None] == 1 + jnp.arange(slots)).astype(jnp.float32)
    sums_BND = jnp.einsum(
        "btd,btn->bnd", hidden_BTD.astype(jnp.float32), is_of_BTN, precision=jax.lax.Precision.HIGHEST
    )
    return sums_BND / jnp.maximum(is_of_BTN.sum(axis=1), 1.0)[..., None]


def unit(vectors: jax.Array) -> jax.Array:
    """Vectors [..., D] of length 1; one that is shorter than 1e-12 becomes 0, and so does its gradient."""
    squares = jnp.sum(vectors**2, axis=-1, keepdims=True)
    has_length = squares > 1e-24
    return jnp.where(has_length, vectors * jax.lax.rsqrt(jnp.where(has_length, squares, 1.0)), 0.0)
