"""Grow a trained encoder's tables: new vocabulary pieces and more positions."""

from collections.abc import Sequence

import jax
import numpy as np

from bertjax.models import vocabulary
from bertjax.models.config import EncoderConfig


def add_pieces(params: dict, config: EncoderConfig, parts: Sequence[Sequence[int]]) -> dict:
    """Add a row for each new piece, initialized to the mean of the pieces that it was split into.

    Word embeddings and MLM head biases grow; existing rows do not change.

    Args:
      params: encoder and heads, with padded vocabulary.
      parts: for each new piece, the old tokenizer's ids for it, at least one. New ids follow the old ids.

    Returns:
      Params for `config` with `vocab_size` raised by `len(parts)`, without padding.
    """

    def extend(path, leaf):
        if not vocabulary.has_vocabulary_axis(path):
            return leaf
        new = np.array([leaf[list(ids)].mean(axis=0) for ids in parts], leaf.dtype)
        return np.concatenate([leaf, new.reshape(-1, *leaf.shape[1:])])

    return jax.tree_util.tree_map_with_path(extend, vocabulary.cut(params, config))


def add_positions(params: dict, config: EncoderConfig, max_positions: int) -> dict:
    """Extend the position table: new position i starts as old position i mod the old length.

    Within each stretch of the old length, positions are familiar and learned distances still hold (Beltagy et al.,
    2020, arXiv 2004.05150, did this for RoBERTa).
    """

    first = config.embeddings.position_offset
    # The unused rows before the first position (`position_offset`) are copied once, not repeated.
    rows = np.concatenate([np.arange(first), first + np.arange(max_positions) % config.max_positions])

    def extend(path, leaf):
        return leaf[rows] if path[-1].key == "position" else leaf

    return jax.tree_util.tree_map_with_path(extend, params)
