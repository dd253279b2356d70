"""Parameter shapes of an encoder, without allocating the parameters."""

import dataclasses
import functools
from typing import cast

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from bertjax.models import vocabulary
from bertjax.models.config import EncoderConfig, Execution
from bertjax.models.encoder import Encoder


def unpadded_shapes(params: dict, config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Return {flattened path: shape}, without vocabulary padding."""

    def shape(path: tuple, leaf: jax.ShapeDtypeStruct) -> tuple[int, ...]:
        return (config.vocab_size, *leaf.shape[1:]) if vocabulary.has_vocabulary_axis(path) else leaf.shape

    return cast(dict, flatten_dict(jax.tree_util.tree_map_with_path(shape, params), sep="/"))


@functools.lru_cache(maxsize=16)
def encoder_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Return {flattened path: shape}, such as `embeddings/word`, for an encoder without vocabulary padding."""
    # Execution has no effect on shapes. Sharded weights could not be initialized here.
    encoder = Encoder(dataclasses.replace(config, execution=Execution()))

    def init() -> dict:
        return cast(dict, encoder.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"])

    return unpadded_shapes(jax.eval_shape(init), config)
