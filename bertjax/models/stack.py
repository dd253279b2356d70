"""The parameters of a stack of layers, some of which layers may share (Lan et al., 2020, section 3.1).

A leaf is stacked on as many rows as it has distinct values: L, or the G that `EncoderConfig.sharing_groups` says. What
is shared is never copied for each layer, forward or backward: every layer reads its row, and their gradients add up.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.models.config import EncoderConfig

Tree = Any

# The parts of a layer that can be shared apart, by the first names of their parameters.
_PARTS = {
    "none": (),
    "attention": ("attention", "attention_norm"),
    "feedforward": ("intermediate", "gate", "output", "output_norm"),
}
_PARTS["all"] = _PARTS["attention"] + _PARTS["feedforward"]


def create(config: EncoderConfig, init: Callable[[jax.Array], dict], keys_L: jax.Array) -> dict:
    """The stack, by an initializer of layers from their keys; what is shared begins as in the first G layers."""
    own, shared = init(keys_L), {}
    if config.sharing != "none":
        shared = init(keys_L[: config.sharing_groups])
    return {name: (shared if name in _PARTS[config.sharing] else own)[name] for name in own}


def divide(config: EncoderConfig, layers: dict) -> tuple[dict, dict]:
    """(what each layer has of its own [L, ...], what layers share [G, ...], in float32).

    In float32, so that the gradients of all layers are not rounded one by one as they add up.
    """
    of_shared = {name: params for name, params in layers.items() if name in _PARTS[config.sharing]}
    own = {name: params for name, params in layers.items() if name not in of_shared}
    return own, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), of_shared)


def window(config: EncoderConfig, number: jax.Array) -> jax.Array | None:
    """int32 [], how far a layer sees to either side, any distance where it is global; None where all layers are."""
    if not config.window:
        return None
    return jnp.where(number % config.global_every == 0, jnp.iinfo(jnp.int32).max, config.window).astype(jnp.int32)


def grouped(config: EncoderConfig, per_layer: Tree, shared: dict) -> tuple[tuple[Tree, dict] | None, tuple[Tree, dict]]:
    """(all groups of layers but the last, or None where there is one; the last).

    A group is (what each of its layers has of its own [L / G, ...], what they share); of several, one axis before that.
    """
    count = config.sharing_groups
    if count == 1:
        return None, (per_layer, jax.tree.map(lambda leaf: leaf[0], shared))
    per_group = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), per_layer)
    earlier, last = (jax.tree.map(lambda x, s=s: x[s], (per_group, shared)) for s in (slice(None, -1), -1))
    return earlier, last
