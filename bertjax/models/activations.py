"""The nonlinearities of feed-forward parts, heads and poolers."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bertjax.models.config import EncoderConfig


def gelu(x: jax.Array) -> jax.Array:
    """Return GELU in its exact, erf form (Hendrycks & Gimpel, 2016), as published in BERT.

    In bfloat16 on a CPU, 1 + erf is rounded to a multiple of 1/256, so that many values between -4 and -1 are 0. XLA
    for TPU computes it in float32.
    """
    return 0.5 * x * (1.0 + jax.lax.erf(x * 2**-0.5))


def gelu_tanh(x: jax.Array) -> jax.Array:
    """Return the approximation of GELU by tanh (Hendrycks & Gimpel, 2016, section 2)."""
    return 0.5 * x * (1.0 + jnp.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)))


def activation(config: EncoderConfig) -> Callable[[jax.Array], jax.Array]:
    """Return the function that `config.activation` names, without the gate of `geglu`."""
    return {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": jax.nn.relu, "geglu": gelu}[config.activation]


def pooler_activation(config: EncoderConfig) -> Callable[[jax.Array], jax.Array]:
    """Return the function that `config.pooler_activation` names."""
    return {"tanh": jnp.tanh, "gelu": gelu, "relu": jax.nn.relu}[config.pooler_activation]
