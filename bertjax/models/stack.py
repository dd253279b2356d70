"""The parameters of a stack of layers, some of which layers may share (Lan et al., 2020, section 3.1).

A leaf has as many rows as it has distinct values: L, or the G of `EncoderConfig.sharing_groups`. Shared parameters are
never copied for each layer, forward or backward: every layer reads its row, and the gradients of the layers are summed.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.models.config import EncoderConfig

Tree = Any

# Parts of a layer that can be shared separately, by the first names of their parameters.
_PARTS = {
    "none": (),
    "attention": ("attention", "attention_norm"),
    "feedforward": ("intermediate", "gate", "output", "output_norm"),
}
_PARTS["all"] = _PARTS["attention"] + _PARTS["feedforward"]


def rows(config: EncoderConfig, part: str) -> int:
    """Return the number of rows of the parameters of a part, given by their first name: L, or G if it is shared."""
    return config.sharing_groups if part in _PARTS[config.sharing] else config.layers


def create(config: EncoderConfig, init: Callable[[jax.Array], dict], keys_L: jax.Array) -> dict:
    """Return the stack from an initializer of layers; shared parameters start as those of the first G layers."""
    own, shared = init(keys_L), {}
    if config.sharing != "none":
        shared = init(keys_L[: config.sharing_groups])
    return {name: (shared if name in _PARTS[config.sharing] else own)[name] for name in own}


def divide(config: EncoderConfig, layers: dict) -> tuple[dict, dict]:
    """Return (parameters of each layer [L, ...], shared parameters [G, ...] in float32).

    In float32, so that the gradients of all layers are summed without rounding each of them.
    """
    to_share = {name: params for name, params in layers.items() if name in _PARTS[config.sharing]}
    own = {name: params for name, params in layers.items() if name not in to_share}
    return own, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), to_share)


def window(config: EncoderConfig, number: jax.Array) -> jax.Array | None:
    """Return int32 [], how far a layer sees to either side (a global layer: any distance); None if all are global."""
    if not config.window:
        return None
    return jnp.where(number % config.global_every == 0, jnp.iinfo(jnp.int32).max, config.window).astype(jnp.int32)


def grouped(config: EncoderConfig, per_layer: Tree, shared: dict) -> tuple[tuple[Tree, dict] | None, tuple[Tree, dict]]:
    """Return (all groups of layers but the last, or None if there is only one; the last group).

    A group is (inputs of each of its layers [L / G, ...], parameters that they share); several groups have one more
    leading axis.
    """
    count = config.sharing_groups
    if count == 1:
        return None, (per_layer, jax.tree.map(lambda leaf: leaf[0], shared))
    per_group = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), per_layer)
    earlier, last = (jax.tree.map(lambda x, s=s: x[s], (per_group, shared)) for s in (slice(None, -1), -1))
    return earlier, last
