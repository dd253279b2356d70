"""Pooling of hidden states into one vector per example, and the columns that the vector is read from."""

import jax
import jax.numpy as jnp


def mean_of_examples(hidden_BTD: jax.Array, examples_BT: jax.Array, slots: int) -> jax.Array:
    """Mean of each example's hidden states, including [CLS] and [SEP]; float32 [B, N, D], 0 in an empty slot.

    This is Sentence-BERT's MEAN pooling (Reimers & Gurevych, 2019, section 3, arXiv 1908.10084) for packed rows.

    Args:
      examples_BT: int, 1-based index of each token's example; 0 = padding.
      slots: N, places for examples in a row.
    """
    is_member_BTN = (examples_BT[..., None] == 1 + jnp.arange(slots)).astype(jnp.float32)
    # Sum per example as one matmul with a one-hot membership matrix.
    sums_BND = jnp.einsum(
        "btd,btn->bnd", hidden_BTD.astype(jnp.float32), is_member_BTN, precision=jax.lax.Precision.HIGHEST
    )
    return sums_BND / jnp.maximum(is_member_BTN.sum(axis=1), 1.0)[..., None]


def l2_normalize(vectors: jax.Array) -> jax.Array:
    """Scale vectors [..., D] to length 1; a vector shorter than 1e-12 becomes 0, and so does its gradient."""
    squares = jnp.sum(vectors**2, axis=-1, keepdims=True)
    # The inner `where` keeps rsqrt(0) out of the gradient, where 0 * inf would be NaN.
    has_length = squares > 1e-24
    return jnp.where(has_length, vectors * jax.lax.rsqrt(jnp.where(has_length, squares, 1.0)), 0.0)


def first_columns(examples_BT: jax.Array, slots: int) -> jax.Array:
    """Return the column of each example's first token, like `last_columns`."""
    is_member_BNT = examples_BT[:, None, :] == 1 + jnp.arange(slots)[:, None]
    return jnp.argmax(is_member_BNT, axis=-1).astype(jnp.int32)


def last_columns(examples_BT: jax.Array, slots: int) -> jax.Array:
    """Return the column of each example's last token; int32 [B, N], 0 in an empty slot.

    Args:
      examples_BT: int, 1-based index of each token's example in its row; 0 = padding.
      slots: N.
    """
    is_member_BNT = examples_BT[:, None, :] == 1 + jnp.arange(slots)[:, None]
    return jnp.max(jnp.where(is_member_BNT, jnp.arange(examples_BT.shape[1]), 0), axis=-1)
