"""Layers that differ by their place: local ones see a window of their example, global ones all of it."""

from typing import Any

import jax
import jax.numpy as jnp

from bertjax.models.rotary import Rotary
from bertjax.models.visibility import Visibility
from bertjax.runtime.errors import UserError

# A window that no row exceeds.
_EVERYTHING = jnp.iinfo(jnp.int32).max


def check_local_layers(block: Any) -> None:
    """Raise UserError if a block's `window` and `global_every` are out of range, or contradict each other."""
    if block.window < 0:
        raise UserError(f"model.block.window={block.window} must not be negative; 0 lets every layer see everything")
    if block.global_every < 1:
        raise UserError(f"model.block.global_every={block.global_every} must be at least 1")
    # One without the other would silently have no effect.
    if (block.window > 0) != (block.global_every > 1):
        raise UserError(
            f"model.block.window={block.window} and model.block.global_every={block.global_every} contradict each "
            "other; local layers need a window above 0 and a global_every above 1"
        )


def at_depth(
    block: Any, is_global: jax.Array | bool, visibility: Visibility, positions: tuple[Rotary, ...]
) -> tuple[Visibility, Rotary]:
    """Return what a layer sees, and its rotations of queries and keys.

    Args:
      block: the block, with a `window` of tokens to either side; 0 if all layers are global.
      is_global: bool [], whether the layer is global.
      visibility: what a global layer sees.
      positions: rotations in global layers and, if there are local layers, in those.
    """
    if not block.window:
        return visibility, positions[0]
    # Data, not a branch: the number is traced, so the scan compiles one layer body for local and global layers.
    window = jnp.where(is_global, _EVERYTHING, block.window).astype(jnp.int32)
    rotary = jax.tree.map(lambda whole, local: jnp.where(is_global, whole, local), *positions)
    return visibility._replace(window=window, widest=block.window), rotary
