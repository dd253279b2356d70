"""An encoder with params that tell every place apart, and its states for a batch."""

import functools

import jax
import jax.numpy as jnp

from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from tests import batches

CORE = ("tokens_BT", "segments_BT", "positions_BT", "examples_BT", "summary_positions_BN")


@functools.cache
def params_of(config: EncoderConfig) -> dict:
    shapes = jax.eval_shape(Encoder(config).init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
    return batches.filled(shapes["params"])


@functools.partial(jax.jit, static_argnums=0)
def encode(config: EncoderConfig, params: dict, batch: dict, masks: dict | None = None, **inputs):
    """The encoder's states for the arrays of a batch, with taps if there are masks."""
    variables = {"params": params} | ({"taps": masks} if masks else {})
    return Encoder(config).apply(variables, *(batch.get(name) for name in CORE), **inputs)
