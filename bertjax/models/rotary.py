"""Rotary positions: queries and keys are turned, so that of positions only distances count in their products."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Rotation(NamedTuple):
    """By how much the tokens of a row turn (Su et al., 2021, section 3.2.2, arXiv 2104.09864).

    Channel i of a head turns with channel i + C, C half of the head's width, by base^(-i / C) a position.

    Attributes:
      cosine_BT1C: float32.
      sine_BT1C: float32.
    """

    cosine_BT1C: jax.Array
    sine_BT1C: jax.Array

    def at(self, read_BQ: jax.Array | None) -> "Rotation":
        """That of the tokens `read_BQ`, or of all."""
        if read_BQ is None:
            return self
        return Rotation(*(jnp.take_along_axis(x, read_BQ[..., None, None], axis=1) for x in self))

    def turned(self, x_BTHD: jax.Array) -> jax.Array:
        """Queries or keys of these tokens, turned in float32."""
        first, second = jnp.split(x_BTHD.astype(jnp.float32), 2, axis=-1)
        turned = (
            first * self.cosine_BT1C - second * self.sine_BT1C,
            second * self.cosine_BT1C + first * self.sine_BT1C,
        )
        return jnp.concatenate(turned, axis=-1).astype(x_BTHD.dtype)


def rotation(positions_BT: jax.Array, width: int, base: float) -> Rotation:
    """The rotation of tokens at these positions, for heads of a width."""
    channels = width // 2
    frequencies_C = base ** (-jnp.arange(channels, dtype=jnp.float32) / channels)
    angles_BT1C = positions_BT[..., None, None].astype(jnp.float32) * frequencies_C
    return Rotation(jnp.cos(angles_BT1C), jnp.sin(angles_BT1C))
