"""The tables of an encoder: vocabulary padding, which is neither counted nor exported, and new pieces and positions."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.encoder import Encoder


def has_vocabulary_axis(path: tuple) -> bool:
    """Return whether the first axis of the leaf at this key path is the vocabulary."""
    # By naming convention: every such parameter is called word*, see `bertjax.models.embeddings`.
    return path[-1].key.startswith("word")


def changed(params: dict, change: Callable[[Any], Any]) -> dict:
    """Return params with `change` applied to each leaf whose first axis is the vocabulary."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: change(leaf) if has_vocabulary_axis(path) else leaf, params
    )


def cut(params: dict, config: EncoderConfig) -> dict:
    """Return params without vocabulary padding."""
    return changed(params, lambda leaf: leaf[: config.vocab_size])


def pad(params: dict, config: EncoderConfig) -> dict:
    """Add the padding back as rows of zeros, the inverse of `cut` (numpy arrays in, numpy arrays out)."""
    rows = config.padded_vocab_size - config.vocab_size
    return changed(params, lambda leaf: np.pad(leaf, [(0, rows)] + [(0, 0)] * (leaf.ndim - 1)))


def exchanged(params: dict, first: int, second: int) -> dict:
    """Return params in which two tokens have exchanged their ids (numpy arrays in, numpy arrays out)."""

    def exchange(leaf):
        order = np.arange(len(leaf))
        order[[first, second]] = second, first
        return np.asarray(leaf)[order]

    return changed(params, exchange)


def unpadded_shape(path: tuple, leaf: Any, config: EncoderConfig) -> tuple[int, ...]:
    """Return the shape of the leaf at this key path, without vocabulary padding."""
    return (config.vocab_size, *leaf.shape[1:]) if has_vocabulary_axis(path) else leaf.shape


def count_leaf(path: tuple, leaf: Any, config: EncoderConfig) -> int:
    """Return the parameter count of the leaf at this key path, without vocabulary padding."""
    return math.prod(unpadded_shape(path, leaf, config))


def count_parameters(params: dict, config: EncoderConfig) -> int:
    """Return the parameter count, without vocabulary padding."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return sum(count_leaf(path, leaf, config) for path, leaf in leaves)


def unpadded_shapes(params: dict, config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Return {flattened path: shape}, without vocabulary padding."""
    shape = functools.partial(unpadded_shape, config=config)
    return cast(dict, flatten_dict(jax.tree_util.tree_map_with_path(shape, params), sep="/"))


@functools.lru_cache(maxsize=16)
def encoder_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Return {flattened path: shape}, such as `embeddings/word`, for an encoder without vocabulary padding."""
    # Execution has no effect on shapes. Sharded weights could not be initialized here.
    encoder = Encoder(dataclasses.replace(config, execution=Execution()))

    def init() -> dict:
        return cast(dict, encoder.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"])

    return unpadded_shapes(jax.eval_shape(init), config)


def add_pieces(params: dict, config: EncoderConfig, parts: Sequence[Sequence[int]]) -> dict:
    """Add a row for each new piece, initialized to the mean of the pieces that it was split into.

    Word embeddings and MLM head biases grow; existing rows do not change.

    Args:
      params: encoder and heads, with padded vocabulary.
      parts: for each new piece, the old tokenizer's ids for it, at least one. New ids follow the old ids.

    Returns:
      Params for `config` with `vocab_size` raised by `len(parts)`, without padding.
    """

    def extend(leaf):
        new = np.array([leaf[list(ids)].mean(axis=0) for ids in parts], leaf.dtype)
        return np.concatenate([leaf, new.reshape(-1, *leaf.shape[1:])])

    return changed(cut(params, config), extend)


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
