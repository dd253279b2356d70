"""Activation functions for feed-forward layers, heads and poolers."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bertjax.models.config import EncoderConfig

Activation = Callable[[jax.Array], jax.Array]


def gelu(x: jax.Array) -> jax.Array:
    """GELU in its exact (erf) form, as in BERT (Hendrycks & Gimpel, 2016).

    In bfloat16 on CPU, 1 + erf rounds to multiples of 1/256: many values in (-4, -1) become 0. On TPU it is float32.
    """
    return 0.5 * x * (1.0 + jax.lax.erf(x * 2**-0.5))


def gelu_tanh(x: jax.Array) -> jax.Array:
    """Tanh approximation of GELU (Hendrycks & Gimpel, 2016, section 2)."""
    return 0.5 * x * (1.0 + jnp.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)))


def activation(config: EncoderConfig) -> Activation:
    """Return the function for `config.activation`."""
    return {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": jax.nn.relu}[config.activation]


def pooler_activation(config: EncoderConfig) -> Activation:
    """Return the function for `config.pooler_activation`."""
    return {"tanh": jnp.tanh, "gelu": gelu, "relu": jax.nn.relu}[config.pooler_activation]
