"""Which tokens of a row may attend to which."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Queries(NamedTuple):
    """The states that attend, where those are not the tokens' own.

    Attributes:
      hidden_BQD: their hidden states.
      columns_BQ: int, where in the row each of them sits.
      rank_BQ: int, in the order of `Visibility.rank_BT`; None for those of their columns.
      tokens: how many of the first are all T tokens in their order: T or 0.
    """

    hidden_BQD: jax.Array
    columns_BQ: jax.Array
    rank_BQ: jax.Array | None = None
    tokens: int = 0


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

    def mask_BQT(self, columns_BQ: jax.Array | None = None, rank_BQ: jax.Array | None = None) -> jax.Array:
        """Boolean mask, True where query q may attend to token t.

        Args:
          columns_BQ: int, where the queries sit; all tokens ask by default.
          rank_BQ: int, those of the queries; those of their columns by default.
        """

        def of_queries(values_BT):
            return values_BT if columns_BQ is None else jnp.take_along_axis(values_BT, columns_BQ, axis=1)

        mask_BQT = of_queries(self.examples_BT)[:, :, None] == self.examples_BT[:, None, :]
        columns_BT = jnp.broadcast_to(jnp.arange(self.examples_BT.shape[1]), self.examples_BT.shape)
        if self.window is not None:
            mask_BQT &= jnp.abs(of_queries(columns_BT)[:, :, None] - columns_BT[:, None, :]) <= self.window
        if self.rank_BT is not None:
            rank_BQ = of_queries(self.rank_BT) if rank_BQ is None else rank_BQ
            mask_BQT &= rank_BQ[:, :, None] >= self.rank_BT[:, None, :]
        return mask_BQT
