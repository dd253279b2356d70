"""Hidden states of all layers as features, and a learned mix of them (ELMo's scalar mix)."""

from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models import taps
from bertjax.models.config import EncoderConfig
from bertjax.models.model import Model

# Add these variables to `params` and pass `mutable=[taps.CAPTURED]` to use `encode_layers`.
CAPTURES = {taps.CAPTURED: {"encoder": {"hidden": None}}}


class ScalarMix(nn.Module):
    """gamma * sum over layers of softmax(weights)_l h_l (Peters et al., 2018, section 3.2, arXiv 1802.05365)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, hidden_LBTD: jax.Array) -> jax.Array:
        """Return float32 [B, T, D]. The initial mix is the mean of the embeddings and all layers."""
        weights_L = self.param("weights", nn.initializers.zeros, (self.config.layers + 1,))
        gamma = self.param("gamma", nn.initializers.ones, (1,))
        shares_L, hidden_LBTD = jax.nn.softmax(weights_L), hidden_LBTD.astype(jnp.float32)
        return gamma * jnp.einsum("l,lbtd->btd", shares_L, hidden_LBTD, precision=jax.lax.Precision.HIGHEST)


def apply(model: Model, variables: dict, *arguments: Any, method: Callable, with_layers: bool) -> Any:
    """Apply a model method. With `with_layers`, the method may call `encode_layers`."""
    if not with_layers:
        return model.apply(variables, *arguments, method=method)
    return model.apply(variables | CAPTURES, *arguments, method=method, mutable=[taps.CAPTURED])[0]


def apply_capturing(
    model: Model, variables: dict, *arguments: Any, method: Callable, names: Collection[str], layers: tuple[int, ...]
) -> tuple[Any, dict[str, jax.Array]]:
    """Apply a model method; return its result and the captured encoder values {name: array}.

    Args:
      names: tap names, see `bertjax.models.taps`; if empty, nothing is captured.
      layers: layers to capture, counted from 0.
    """
    if not names:
        return model.apply(variables, *arguments, method=method), {}
    captures = {taps.CAPTURED: {"encoder": dict.fromkeys(names, layers)}}
    result, state = model.apply(variables | captures, *arguments, method=method, mutable=[taps.CAPTURED])
    return result, dict(state[taps.CAPTURED]["encoder"])


def encode_layers(model: Model, batch: dict) -> jax.Array:
    """Device: return hidden states [L + 1, B, T, D] without dropout, for a bound model applied with `CAPTURES`."""
    output_BTD = model.encode(batch).hidden
    if model.is_initializing():  # nothing is captured; only the shapes matter
        return jnp.broadcast_to(output_BTD, (model.config.layers + 1, *output_BTD.shape))
    return all_layers(model.encoder.get_variable(taps.CAPTURED, "hidden"), output_BTD)


def all_layers(captured_LBTD: jax.Array, output_BTD: jax.Array) -> jax.Array:
    """Stack the embeddings and each layer's output; the last entry is the encoder output, after its final norm.

    Args:
      captured_LBTD: the tap `hidden`, [L + 1, B, T, D].
      output_BTD: `Encoded.hidden`.
    """
    return jnp.concatenate([captured_LBTD[:-1], output_BTD[None]])
