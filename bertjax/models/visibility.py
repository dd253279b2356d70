"""Attention visibility: which tokens of a row may attend to which others."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# Queries and keys with their positions, and a bias, float32 [B, H, Q, T], to add to their scaled products, or None.
Placed = tuple[jax.Array, jax.Array, jax.Array | None]


class Queries(NamedTuple):
    """States that attend, if they are not simply the hidden states of all tokens.

    Attributes:
      columns_BQ: int, column of each query in its row.
      rank_BQ: int, rank of each query in the order `Visibility.rank_BT`; None for the ranks of their columns.
      tokens: T if the first T queries are all tokens in order, else 0.
    """

    hidden_BQD: jax.Array
    columns_BQ: jax.Array
    rank_BQ: jax.Array | None = None
    tokens: int = 0


class Visibility(NamedTuple):
    """Which tokens of a row a token may attend to. Tokens never attend to another example.

    Attributes:
      examples_BT: int, 1-based index of each token's example in its row (0 = padding, which sees only padding).
      window: int or int32 [], number of visible tokens to either side; None for no limit.
      rank_BT: int, rank of each token, which sees equal and lower ranks (XLNet's order, or columns from left to right).
      end_BT: int, with `rank_BT`: rank at which a token stops being visible (MPNet's symbols of predicted tokens).
      widest: the window of local layers, where `window` depends on the traced number of the layer; else None.
    """

    examples_BT: jax.Array
    window: int | jax.Array | None = None
    rank_BT: jax.Array | None = None
    end_BT: jax.Array | None = None
    widest: int | None = None

    def mask_BQT(self, columns_BQ: jax.Array | None = None, rank_BQ: jax.Array | None = None) -> jax.Array:
        """Return a boolean mask that is True where query q may attend to token t.

        Args:
          columns_BQ, rank_BQ: int, columns and ranks of the queries; by default all tokens, and their columns' ranks.
        """
        mask_BQT = at_columns(self.examples_BT, columns_BQ)[:, :, None] == self.examples_BT[:, None, :]
        columns_BT = jnp.broadcast_to(jnp.arange(self.examples_BT.shape[1]), self.examples_BT.shape)
        if self.window is not None:
            # An example is contiguous in its row, so columns have the same distances as positions.
            mask_BQT &= jnp.abs(at_columns(columns_BT, columns_BQ)[:, :, None] - columns_BT[:, None, :]) <= self.window
        if self.rank_BT is not None:
            rank_BQ = at_columns(self.rank_BT, columns_BQ) if rank_BQ is None else rank_BQ
            mask_BQT &= rank_BQ[:, :, None] >= self.rank_BT[:, None, :]
            if self.end_BT is not None:
                mask_BQT &= rank_BQ[:, :, None] < self.end_BT[:, None, :]
        return mask_BQT


class LayerInputs(NamedTuple):
    """What a layer computes new hidden states from: those of all tokens, or of the `queries`.

    Attributes:
      hidden_BTD: states of all tokens.
      visibility: which token attends to which.
      key: dropout key; None for no dropout.
      queries: the states to compute; None for all tokens.
      positions: what the block's `positions` returns; None if the embeddings hold them.
      number: int32 [], 0 for the first layer.
    """

    hidden_BTD: jax.Array
    visibility: Visibility
    key: jax.Array | None = None
    queries: Queries | None = None
    positions: Any = None
    number: jax.Array | int = 0

    @property
    def own(self) -> jax.Array:
        """The states that the layer replaces: of the queries, or of all tokens."""
        return self.hidden_BTD if self.queries is None else self.queries.hidden_BQD


def at_columns(values_BT: jax.Array, columns_BQ: jax.Array | None) -> jax.Array:
    """Return the values [B, Q] at the columns of queries; all [B, T] if the columns are None."""
    return values_BT if columns_BQ is None else jnp.take_along_axis(values_BT, columns_BQ, axis=1)


def visible(logits: jax.Array, mask: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """Return float32 logits plus the bias, lowest where the mask is False: their softmax is 0 there."""
    # Rows are packed: mask padding and other examples. Finite, not -inf, which would give NaN in a fully masked row.
    return jnp.where(mask, logits.astype(jnp.float32) + (0.0 if bias is None else bias), jnp.finfo(jnp.float32).min)
