"""Two-stream attention for permutation language modeling (Yang et al., 2019, arXiv 1906.08237, section 2.3).

The content stream has a state for each of the T tokens, which sees itself and the tokens before it in the prediction
order. The query stream has K more states, one per predicted token. A query state knows its position and sees the tokens
before it in the order, but not its own token, which it has to predict. Both streams attend to the content stream with
the same weights: T + K states pass through a layer together.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bertjax.models.dropout import dropout
from bertjax.models.visibility import Queries


class Streams(NamedTuple):
    """Columns and prediction order for both streams.

    Attributes:
      columns_BK: int, columns of the predicted tokens.
      rank_BT: int, ranks of all tokens in the order; a content state sees equal and lower ranks.
      memory_BT: bool, tokens whose states pass no gradient on, like the states cached from an earlier segment in
        section 2.4; None for none.
    """

    columns_BK: jax.Array
    rank_BT: jax.Array
    memory_BT: jax.Array | None = None

    def begin(self, hidden_BTD: jax.Array, query_D: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
        """Return the states [B, T + K, D] before the first layer.

        Args:
          hidden_BTD: token embeddings, after dropout.
          query_D: initial query-stream state, the same for every predicted token except for dropout.
          rate: dropout rate for the query stream.
          key: dropout key; None for no dropout.
        """
        shape = (*self.columns_BK.shape, query_D.shape[0])
        query_BKD = dropout(jnp.broadcast_to(query_D.astype(hidden_BTD.dtype), shape), rate, key)
        return jnp.concatenate([hidden_BTD, query_BKD], axis=1)

    def content(self, states_BSD: jax.Array) -> jax.Array:
        """Return the states that both streams attend to, [B, T, D]."""
        content_BTD = states_BSD[:, : self.rank_BT.shape[1]]
        if self.memory_BT is None:
            return content_BTD
        return jnp.where(self.memory_BT[..., None], jax.lax.stop_gradient(content_BTD), content_BTD)

    def queries(self, states_BSD: jax.Array, is_last: bool) -> Queries:
        """Return the states that attend. In the last layer only the query stream does, since nothing else is read."""
        tokens = self.rank_BT.shape[1]
        # One rank below the token's own content state: the query stream must not see the token that it predicts.
        rank_BK = jnp.take_along_axis(self.rank_BT, self.columns_BK, axis=1) - 1
        if is_last:
            return Queries(states_BSD[:, tokens:], self.columns_BK, rank_BK)
        columns_BT = jnp.broadcast_to(jnp.arange(tokens), self.rank_BT.shape)
        columns_BS = jnp.concatenate([columns_BT, self.columns_BK], axis=1)
        return Queries(states_BSD, columns_BS, jnp.concatenate([self.rank_BT, rank_BK], axis=1), tokens)
