"""Rotary position embeddings: queries and keys are rotated so that their dot products depend only on distances."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bertjax.models.config import EncoderConfig
from bertjax.models.visibility import Placed, Queries
from bertjax.runtime.errors import UserError


class Rotary(NamedTuple):
    """Rotation of each token in a batch (Su et al., 2021, section 3.2.2, arXiv 2104.09864).

    Channels i and i + C of a head are rotated together, by an angle of base^(-i / C) per position. C is half the head
    width. Both arrays are float32.
    """

    cosine_BT1C: jax.Array
    sine_BT1C: jax.Array

    def apply(self, config: EncoderConfig, query_BQHD: jax.Array, key_BTHD: jax.Array, at: Queries | None) -> Placed:
        """Return rotated queries and keys, as `bertjax.models.attention.Positions` describes."""
        of_queries = self
        if at is not None:
            of_queries = Rotary(*(jnp.take_along_axis(x, at.columns_BQ[..., None, None], axis=1) for x in self))
        return apply_rotary(query_BQHD, of_queries), apply_rotary(key_BTHD, self), None


def apply_rotary(x_BTHD: jax.Array, rotary: Rotary) -> jax.Array:
    """Rotate queries or keys by their token positions, computed in float32."""
    # Halves are paired (i with i + C), as in GPT-NeoX and transformers; the paper pairs neighbors (2i with 2i + 1).
    first, second = jnp.split(x_BTHD.astype(jnp.float32), 2, axis=-1)
    rotated = (
        first * rotary.cosine_BT1C - second * rotary.sine_BT1C,
        second * rotary.cosine_BT1C + first * rotary.sine_BT1C,
    )
    return jnp.concatenate(rotated, axis=-1).astype(x_BTHD.dtype)


def rotary_at(positions_BT: jax.Array, width: int, base: float) -> Rotary:
    """Return the rotation at the given positions for heads of the given width."""
    channels = width // 2
    frequencies_C = base ** (-jnp.arange(channels, dtype=jnp.float32) / channels)
    angles_BT1C = positions_BT[..., None, None].astype(jnp.float32) * frequencies_C
    return Rotary(jnp.cos(angles_BT1C), jnp.sin(angles_BT1C))


def check_rotary(config: EncoderConfig) -> None:
    """Raise UserError if heads have no pairs of channels to rotate."""
    block = config.block
    if config.head_channels % 2:
        raise UserError(
            f"model.block.kind={block.kind} rotates pairs of channels, and heads are {config.head_channels} wide; "
            "choose another number of model.heads"
        )
