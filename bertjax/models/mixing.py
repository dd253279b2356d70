"""All layers of an encoder as features: their hidden states, and a learned mix of them."""

from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models import taps
from bertjax.models.config import EncoderConfig
from bertjax.models.model import Model

# Variables that a caller adds to `params` for `encode_layers`, with `mutable=[taps.CAPTURED]`.
CAPTURES = {taps.CAPTURED: {"encoder": {"hidden": None}}}


class ScalarMix(nn.Module):
    """gamma * sum over layers of softmax(weights)_l h_l (Peters et al., 2018, section 3.2, arXiv 1802.05365)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, hidden_LBTD: jax.Array) -> jax.Array:
        """Return float32 [B, T, D]. At first it is the mean of all layers, the embeddings among them."""
        weights_L = self.param("weights", nn.initializers.zeros, (self.config.layers + 1,))
        gamma = self.param("gamma", nn.initializers.ones, (1,))
        shares_L, hidden_LBTD = jax.nn.softmax(weights_L), hidden_LBTD.astype(jnp.float32)
        return gamma * jnp.einsum("l,lbtd->btd", shares_L, hidden_LBTD, precision=jax.lax.Precision.HIGHEST)


def apply(model: Model, variables: dict, *arguments: Any, method: Callable, with_layers: bool) -> Any:
    """Return what a method of a model computes, which may use `encode_layers` if it is called `with_layers`."""
    if not with_layers:
        return model.apply(variables, *arguments, method=method)
    return model.apply(variables | CAPTURES, *arguments, method=method, mutable=[taps.CAPTURED])[0]


def apply_capturing(
    model: Model, variables: dict, *arguments: Any, method: Callable, names: Collection[str], layers: tuple[int, ...]
) -> tuple[Any, dict[str, jax.Array]]:
    """Return what a method of a model computes, and {name: values of some layers} of its encoder.

    Args:
      names: names of `bertjax.models.taps`; nothing is captured if there are none.
      layers: the layers, counted from 0.
    """
    if not names:
        return model.apply(variables, *arguments, method=method), {}
    captures = {taps.CAPTURED: {"encoder": dict.fromkeys(names, layers)}}
    result, state = model.apply(variables | captures, *arguments, method=method, mutable=[taps.CAPTURED])
    return result, dict(state[taps.CAPTURED]["encoder"])


def encode_layers(model: Model, batch: dict) -> jax.Array:
    """Device: return [L + 1, B, T, D] of a bound model that is applied with `CAPTURES`, without dropout."""
    output_BTD = model.encode(batch).hidden
    if model.is_initializing():  # nothing is captured; only the shapes matter
        return jnp.broadcast_to(output_BTD, (model.config.layers + 1, *output_BTD.shape))
    return all_layers(model.encoder.get_variable(taps.CAPTURED, "hidden"), output_BTD)


def all_layers(captured_LBTD: jax.Array, output_BTD: jax.Array) -> jax.Array:
    """Return the embeddings and the states after each layer; the last are the encoder's output, after its final norm.

    Args:
      captured_LBTD: the tap `hidden`, [L + 1, B, T, D].
      output_BTD: `Encoded.hidden`.
    """
    return jnp.concatenate([captured_LBTD[:-1], output_BTD[None]])
