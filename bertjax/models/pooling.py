"""Pooling of hidden states into one vector per example, and the columns that the vector is read from."""

import jax
import jax.numpy as jnp

from bertjax.models.config import EncoderConfig
from bertjax.models.directions import BIDIRECTIONAL


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


def texts_of(config: EncoderConfig, examples_BT: jax.Array, segments_BT: jax.Array) -> jax.Array:
    """Return the index of the text that each token is read with, int [B, T], 0 = padding.

    This is its example, unless pairs are read separately: the two texts of example n are then 2 n - 1 and 2 n.
    """
    if config.pairs == "joint":
        return examples_BT
    return jnp.where(examples_BT > 0, 2 * examples_BT - (segments_BT == 0), 0)


def summary_columns(config: EncoderConfig, texts_BT: jax.Array, summary_positions_BN: jax.Array) -> jax.Array:
    """Return the columns that an example's summary is computed from, int32 [B, M]; see `summaries`.

    For Transformers M is N: the [CLS] columns, or the last tokens if [CLS] does not see the whole example. An LSTM's
    directions end at a text's last and first token: M is 2 S, all last columns followed by all first ones. S is N, or 2
    N if pairs are read separately.

    Args:
      texts_BT: see `texts_of`.
      summary_positions_BN: int, column of each example's [CLS]. Empty slots may hold any value: their summary has
        weight 0.
    """
    slots = summary_positions_BN.shape[1]
    if not config.has_attention:
        slots *= 1 if config.pairs == "joint" else 2
        return jnp.concatenate([last_columns(texts_BT, slots), first_columns(texts_BT, slots)], axis=1)
    if config.direction != BIDIRECTIONAL:
        return last_columns(texts_BT, slots)
    return jnp.maximum(summary_positions_BN, 0)


def summaries(config: EncoderConfig, states_BMD: jax.Array, texts_BT: jax.Array) -> jax.Array:
    """Return each example's summary, [B, N, D] or [B, N, 4 D], from the states at its `summary_columns`.

    For an LSTM, a text's summary is the last state in each direction, as in the code of Tang et al. (2019, arXiv
    1903.12136; castorini/d-bert, `BiRNNModel`). A pair that is read separately has both texts, their absolute
    difference and their product (`SiameseRNNModel`); a missing text is 0.

    Args:
      texts_BT: see `texts_of`.
    """
    if config.has_attention:
        return states_BMD
    last_BSD, first_BSD = jnp.split(states_BMD, 2, axis=1)
    channels = config.width // 2
    states_BSD = jnp.concatenate([last_BSD[..., :channels], first_BSD[..., channels:]], axis=-1)
    if config.pairs == "joint":
        return states_BSD
    is_there_BS = jnp.any(texts_BT[:, None, :] == 1 + jnp.arange(states_BSD.shape[1])[:, None], axis=-1)
    states_BSD = jnp.where(is_there_BS[..., None], states_BSD, 0.0)
    one_BND, other_BND = states_BSD[:, ::2], states_BSD[:, 1::2]
    return jnp.concatenate([one_BND, other_BND, jnp.abs(one_BND - other_BND), one_BND * other_BND], axis=-1)


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
