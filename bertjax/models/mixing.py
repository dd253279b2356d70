"""Hidden states of all layers as features, and a learned mix of them (ELMo's scalar mix)."""

from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models import taps
from bertjax.models.config import EncoderConfig
from bertjax.models.encoder import Encoder
from bertjax.models.model import Model

# Add these variables to `params` and pass `mutable=[taps.CAPTURED]` to use `encode_layers`.
CAPTURES = {taps.CAPTURED: {"encoder": {"hidden": None}}}
# Name of the encoder output in `apply_capturing`, and Flax's collection of what submodules returned.
OUTPUT, _RETURNED = "output", "intermediates"


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


def apply(model: Model, variables: dict, *arguments: Any, method: Callable) -> Any:
    """Apply a model method that may call `encode_layers`."""
    return model.apply(variables | CAPTURES, *arguments, method=method, mutable=[taps.CAPTURED])[0]


def apply_capturing(
    model: Model, variables: dict, *arguments: Any, method: Callable, names: Collection[str], layers: tuple[int, ...]
) -> tuple[Any, dict[str, jax.Array]]:
    """Apply a model method; return its result and the captured encoder values {name: array}.

    Args:
      names: tap names (`bertjax.models.taps`), and `output` for the encoder output, [B, T, D] after its final norm; if
        empty, nothing is captured.
      layers: layers to capture, counted from 0.
    """
    if not names:
        return model.apply(variables, *arguments, method=method), {}
    of_layers = dict.fromkeys((name for name in names if name != OUTPUT), layers)
    result, state = model.apply(
        variables | ({taps.CAPTURED: {"encoder": of_layers}} if of_layers else {}),
        *arguments,
        method=method,
        # A collection without names would capture all of them, which no attention kernel can.
        mutable=[taps.CAPTURED, _RETURNED] if of_layers else [_RETURNED],
        # Taps see only layers. Flax records the encoder's output.
        capture_intermediates=OUTPUT in names and _is_encoder_call,
    )
    captured: dict[str, Any] = dict(state[taps.CAPTURED]["encoder"]) if of_layers else {}
    if OUTPUT in names:
        [encoded] = state[_RETURNED]["encoder"]["__call__"]
        captured[OUTPUT] = encoded.hidden
    return result, captured


def _is_encoder_call(module: nn.Module, method: str) -> bool:
    return isinstance(module, Encoder) and method == "__call__"


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
