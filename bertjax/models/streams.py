"""Two streams of hidden states, for tokens that are predicted in an order (Yang et al., 2019, arXiv 1906.08237, 2.3).

The content stream has the states of all T tokens, but a token sees only itself and the tokens before it in the order.
The query stream has K more states, one for each predicted token. Such a state knows its position and sees the tokens
before it in the order, so it does not see its own token. Both streams attend to the content stream with the same
weights: T + K states pass through a layer side by side.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bertjax.models.dropout import dropout
from bertjax.models.visibility import Queries


class Streams(NamedTuple):
    """Tokens and order of the states of both streams.

    Attributes:
      columns_BK: int, columns of the predicted tokens.
      rank_BT: int, ranks of all tokens in the order; a content state sees lower ranks and its own.
      memory_BT: bool, tokens whose states pass no gradient on, like the states kept from an earlier segment in section
        2.4; None for none.
    """

    columns_BK: jax.Array
    rank_BT: jax.Array
    memory_BT: jax.Array | None = None

    def begin(self, hidden_BTD: jax.Array, query_D: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
        """Return the states [B, T + K, D] before the first layer.

        Args:
          hidden_BTD: embeddings of the tokens, after dropout.
          query_D: the first state of each predicted token in the query stream; they differ by dropout only.
          rate: dropout rate of the query stream.
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
        """Return the states that attend. In the last layer these are the query stream, since nothing else is read."""
        tokens = self.rank_BT.shape[1]
        # One rank lower than the token's own content state, which sees itself.
        rank_BK = jnp.take_along_axis(self.rank_BT, self.columns_BK, axis=1) - 1
        if is_last:
            return Queries(states_BSD[:, tokens:], self.columns_BK, rank_BK)
        columns_BT = jnp.broadcast_to(jnp.arange(tokens), self.rank_BT.shape)
        columns_BS = jnp.concatenate([columns_BT, self.columns_BK], axis=1)
        return Queries(states_BSD, columns_BS, jnp.concatenate([self.rank_BT, rank_BK], axis=1), tokens)
