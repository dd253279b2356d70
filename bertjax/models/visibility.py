"""Which tokens of a row may attend to which."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Visibility(NamedTuple):
    """Which tokens of a row a token may attend to; it never looks out of its example.

    Attributes:
      examples_BT: int, which example of the row a token belongs to (0 = padding, which sees padding only).
      window: int or int32 [], at most this far to either side; None for everything.
      rank_BT: int, only tokens of a lower or equal rank (XLNet's order of prediction); None for every order.
    """

    examples_BT: jax.Array
    window: int | jax.Array | None = None
    rank_BT: jax.Array | None = None

    def mask_BQT(self, read_BQ: jax.Array | None = None) -> jax.Array:
        """Boolean mask, True where query q may attend to token t; queries are the tokens `read_BQ`, or all."""

        def of_queries(values_BT):
            return values_BT if read_BQ is None else jnp.take_along_axis(values_BT, read_BQ, axis=1)

        mask_BQT = of_queries(self.examples_BT)[:, :, None] == self.examples_BT[:, None, :]
        columns_BT = jnp.broadcast_to(jnp.arange(self.examples_BT.shape[1]), self.examples_BT.shape)
        if self.window is not None:
            mask_BQT &= jnp.abs(of_queries(columns_BT)[:, :, None] - columns_BT[:, None, :]) <= self.window
        if self.rank_BT is not None:
            mask_BQT &= of_queries(self.rank_BT)[:, :, None] >= self.rank_BT[:, None, :]
        return mask_BQT
