"""Vocabulary padding. It is internal: neither counted nor exported."""

import math

import jax
import numpy as np

from bertjax.models.config import EncoderConfig


def has_vocabulary_axis(path: tuple) -> bool:
    """Return whether the first axis of the leaf at this key path is the vocabulary."""
    # By naming convention: every such parameter is called word*, see `bertjax.models.embeddings`.
    return path[-1].key.startswith("word")


def cut(params: dict, config: EncoderConfig) -> dict:
    """Return params without vocabulary padding."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf[: config.vocab_size] if has_vocabulary_axis(path) else leaf, params
    )


def pad(params: dict, config: EncoderConfig) -> dict:
    """Add the padding back as rows of zeros, the inverse of `cut` (numpy arrays in, numpy arrays out)."""
    rows = config.padded_vocab_size - config.vocab_size

    def pad_leaf(path, leaf):
        if not has_vocabulary_axis(path):
            return leaf
        return np.pad(leaf, [(0, rows)] + [(0, 0)] * (leaf.ndim - 1))

    return jax.tree_util.tree_map_with_path(pad_leaf, params)


def exchanged(params: dict, first: int, second: int) -> dict:
    """Return params in which two tokens have exchanged their ids (numpy arrays in, numpy arrays out)."""

    def exchange(path, leaf):
        if not has_vocabulary_axis(path):
            return leaf
        order = np.arange(len(leaf))
        order[[first, second]] = second, first
        return np.asarray(leaf)[order]

    return jax.tree_util.tree_map_with_path(exchange, params)


def count_leaf(path: tuple, leaf, config: EncoderConfig) -> int:
    """Return the parameter count of the leaf at this key path, without vocabulary padding."""
    return math.prod((config.vocab_size, *leaf.shape[1:]) if has_vocabulary_axis(path) else leaf.shape)


def count_parameters(params: dict, config: EncoderConfig) -> int:
    """Return the parameter count, without vocabulary padding."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return sum(count_leaf(path, leaf, config) for path, leaf in leaves)
