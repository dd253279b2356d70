"""Two streams of hidden states, for tokens that are predicted in an order (Yang et al., 2019, arXiv 1906.08237, 2.3).

The content stream is what an encoder computes of T tokens, but that a token sees only itself and those before it in the
order. The query stream has K more states, of the tokens that are predicted: each knows its place and sees what comes
before it, so neither itself nor its own token. Both attend to the content stream, by the same weights, at once: T + K
states pass through a layer side by side.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bertjax.models.visibility import Queries


class Streams(NamedTuple):
    """What the states of both streams are of.

    Attributes:
      columns_BK: int, where the predicted tokens sit.
      rank_BT: int, of all tokens, in the order: a content state sees what has a lower rank or its own.
      memory_BT: bool, tokens whose states pass no gradient on, as those of an earlier segment that were kept (section
        2.4); None for none.
    """

    columns_BK: jax.Array
    rank_BT: jax.Array
    memory_BT: jax.Array | None = None

    def begin(self, hidden_BTD: jax.Array, query_D: jax.Array) -> jax.Array:
        """The states [B, T + K, D] before the first layer; those of the query stream are all alike."""
        shape = (*self.columns_BK.shape, query_D.shape[0])
        return jnp.concatenate([hidden_BTD, jnp.broadcast_to(query_D.astype(hidden_BTD.dtype), shape)], axis=1)

    def content(self, states_BSD: jax.Array) -> jax.Array:
        """What the states of both streams attend to, [B, T, D]."""
        content_BTD = states_BSD[:, : self.rank_BT.shape[1]]
        if self.memory_BT is None:
            return content_BTD
        return jnp.where(self.memory_BT[..., None], jax.lax.stop_gradient(content_BTD), content_BTD)

    def queries(self, states_BSD: jax.Array, is_last: bool) -> Queries:
        """The states that attend; in the last layer only those of the query stream, since no other is read."""
        tokens = self.rank_BT.shape[1]
        # One rank lower than the token's own content state, which sees itself.
        rank_BK = jnp.take_along_axis(self.rank_BT, self.columns_BK, axis=1) - 1
        if is_last:
            return Queries(states_BSD[:, tokens:], self.columns_BK, rank_BK)
        columns_BT = jnp.broadcast_to(jnp.arange(tokens), self.rank_BT.shape)
        columns_BS = jnp.concatenate([columns_BT, self.columns_BK], axis=1)
        return Queries(states_BSD, columns_BS, jnp.concatenate([self.rank_BT, rank_BK], axis=1), tokens)
