"""More rows in the tables of a trained encoder, for new vocabulary pieces and for more positions."""

from collections.abc import Sequence

import jax
import numpy as np

from bertjax.models import vocabulary
from bertjax.models.config import EncoderConfig


def add_pieces(params: dict, config: EncoderConfig, parts: Sequence[Sequence[int]]) -> dict:
    """Return params with a row for each new piece: the mean of the rows of the pieces that it was split into.

    The word embeddings and the biases of the MLM head get new rows; the existing rows do not change.

    Args:
      params: encoder and heads, with padded vocabulary.
      parts: for each new piece, the ids that the old tokenizer split it into, at least one. New ids follow the old ids.

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
    """Return params for `max_positions` positions: position i starts as position i mod the old number of positions.

    Every stretch of the old length then has positions that the encoder knows, and what it learned about distances of
    tokens holds within each stretch (Beltagy et al., 2020, arXiv 2004.05150, did this for RoBERTa).
    """

    first = config.position_offset
    rows = np.concatenate([np.arange(first), first + np.arange(max_positions) % config.max_positions])

    def extend(path, leaf):
        return leaf[rows] if path[-1].key == "position" else leaf

    return jax.tree_util.tree_map_with_path(extend, params)
