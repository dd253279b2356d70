"""Embeddings of a token's word and its two neighbors (Sun et al., 2020, MobileBERT, arXiv 2004.02984, section 3.4)."""

import jax
import jax.numpy as jnp


def trigrams(words_BTE: jax.Array, examples_BT: jax.Array) -> jax.Array:
    """Return [B, T, 3 E]: the embeddings of the token after, the token itself and the token before, in this order.

    Beyond the ends of an example they are zeros, as at the ends of a row in the published code
    (google-research/mobilebert, modeling.py). There a padded row continues with the embedding of [PAD].

    Args:
      words_BTE: word embeddings.
      examples_BT: int, number of each token's example, 0 for padding.
    """
    is_neighbor_BT1 = (examples_BT[:, 1:] == examples_BT[:, :-1])[..., None]
    after_BTE = jnp.where(is_neighbor_BT1, words_BTE[:, 1:], 0.0)
    before_BTE = jnp.where(is_neighbor_BT1, words_BTE[:, :-1], 0.0)
    ends = ((0, 0), (0, 1), (0, 0)), ((0, 0), (1, 0), (0, 0))
    return jnp.concatenate([jnp.pad(after_BTE, ends[0]), words_BTE, jnp.pad(before_BTE, ends[1])], axis=-1)
