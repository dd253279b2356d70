"""Parameters of a layer stack, with optional cross-layer sharing (Lan et al., 2020, section 3.1).

Each leaf has one row per distinct value: L rows, or G if shared (`EncoderConfig.sharing_groups`). Shared parameters are
never copied per layer, forward or backward: every layer reads its row, and the layers' gradients are summed.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.models.config import EncoderConfig

Tree = Any

# Separately shareable parts of a layer, as the first names of their parameters.
_PARTS: dict[str, tuple[str, ...]] = {
    "none": (),
    "attention": ("attention", "attention_norm"),
    "feedforward": ("intermediate", "gate", "output", "output_norm"),
}
_PARTS["all"] = _PARTS["attention"] + _PARTS["feedforward"]


def rows(config: EncoderConfig, part: str) -> int:
    """Return the number of parameter rows in a part, given by its first name: L, or G if it is shared."""
    return config.sharing_groups if part in _PARTS[config.sharing] else config.layers


def create(config: EncoderConfig, init: Callable[[jax.Array], dict], keys_L: jax.Array) -> dict:
    """Return the stack from a layer initializer; shared parameters start as the first G layers' values."""
    own, shared = init(keys_L), {}
    if config.sharing != "none":
        shared = init(keys_L[: config.sharing_groups])
    return {name: (shared if name in _PARTS[config.sharing] else own)[name] for name in own}


def divide(config: EncoderConfig, layers: dict) -> tuple[dict, dict]:
    """Return (per-layer params [L, ...], shared params [G, ...]); float32 sums the shared gradients unrounded."""
    to_share = {name: params for name, params in layers.items() if name in _PARTS[config.sharing]}
    own = {name: params for name, params in layers.items() if name not in to_share}
    return own, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), to_share)


def grouped(config: EncoderConfig, per_layer: Tree, shared: dict) -> tuple[tuple[Tree, dict] | None, tuple[Tree, dict]]:
    """Return (all layer groups but the last, or None if there is only one; the last group).

    A group is (per-layer inputs [L / G, ...], its shared parameters); several groups have one more leading axis.
    """
    count = config.sharing_groups
    if count == 1:
        return None, (per_layer, jax.tree.map(lambda leaf: leaf[0], shared))
    per_group = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), per_layer)
    earlier, last = (jax.tree.map(lambda x, s=s: x[s], (per_group, shared)) for s in (slice(None, -1), -1))
    return earlier, last
