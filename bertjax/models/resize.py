"""More rows in the tables of a trained encoder: new pieces of the vocabulary, and more positions."""

from collections.abc import Sequence

import jax
import numpy as np

from bertjax.models import vocabulary
from bertjax.models.config import EncoderConfig


def add_pieces(params: dict, config: EncoderConfig, parts: Sequence[Sequence[int]]) -> dict:
    """Params with a row for each new piece: the mean of the rows of the pieces that it was made of.

    That holds for the word embeddings and for the biases of the MLM head; the rows that were there stay as they are.

    Args:
      params: of encoder and heads, the vocabulary padded as inside.
      config: of that encoder.
      parts: the ids that stood for each new piece, at least one; the new ids follow those that there are.

    Returns:
      Params for `config` with `vocab_size` raised by `len(parts)`.
    """

    def extend(path, leaf):
        if not vocabulary.has_vocabulary_axis(path):
            return leaf
        new = np.array([leaf[list(ids)].mean(axis=0) for ids in parts], leaf.dtype)
        return np.concatenate([leaf, new.reshape(-1, *leaf.shape[1:])])

    return jax.tree_util.tree_map_with_path(extend, vocabulary.cut(params, config))


def add_positions(params: dict, config: EncoderConfig, max_positions: int) -> dict:
    """Params for `max_positions` positions: position i begins as position i mod the old number of them.

    So every stretch of the old length begins with positions that the encoder knows, and what it learned of the distance
    of two tokens holds within each of them (Beltagy et al. 2020, arXiv 2004.05150, did so for RoBERTa).
    """

    first = config.position_offset
    rows = np.concatenate([np.arange(first), first + np.arange(max_positions) % config.max_positions])

    def extend(path, leaf):
        return leaf[rows] if path[-1].key == "position" else leaf

    return jax.tree_util.tree_map_with_path(extend, params)
