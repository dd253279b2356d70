"""Trigram word embeddings: a token's own and both neighbors' (Sun et al., 2020, MobileBERT, arXiv 2004.02984, 3.4)."""

import jax
import jax.numpy as jnp


def trigrams(words_BTE: jax.Array, examples_BT: jax.Array) -> jax.Array:
    """Concatenate the embeddings of the next, the own and the previous token, in this order: [B, T, 3 E].

    Neighbors outside the example are zeros, as at row ends in the published code (google-research/mobilebert,
    modeling.py). There a padded row continues with the embedding of [PAD].

    Args:
      words_BTE: word embeddings.
      examples_BT: int, 1-based index of each token's example; 0 for padding.
    """
    # Rows hold several examples, so a shifted copy must be zeroed where it crosses into another example.
    is_neighbor_BT1 = (examples_BT[:, 1:] == examples_BT[:, :-1])[..., None]
    after_BTE = jnp.where(is_neighbor_BT1, words_BTE[:, 1:], 0.0)
    before_BTE = jnp.where(is_neighbor_BT1, words_BTE[:, :-1], 0.0)
    ends = ((0, 0), (0, 1), (0, 0)), ((0, 0), (1, 0), (0, 0))
    return jnp.concatenate([jnp.pad(after_BTE, ends[0]), words_BTE, jnp.pad(before_BTE, ends[1])], axis=-1)
