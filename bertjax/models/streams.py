"""Two-stream attention for permutation language modeling (Yang et al., 2019, arXiv 1906.08237, section 2.3).

The content stream has a state for each of the T tokens, which sees itself and the tokens before it in the prediction
order. The query stream has K more states, one per predicted token. A query state knows its position and sees the tokens
before it in the order, but not its own token, which it has to predict. Both streams attend to the content stream with
the same weights: T + K states pass through a layer together.

MPNet's two streams with position compensation (Song et al., 2020, arXiv 2004.09297, sections 2.2 to 2.4).

A row holds the symbols that replace the predicted tokens, as in masked language modeling. K further content states
after it are the predicted tokens themselves, and K states of the query stream predict them:

| states | where | rank | sees |
|---|---|---|---|
| T, the row | 0 .. T - 1 | 0 | the row |
| K, the predicted tokens | T .. T + K - 1 | r | itself, predicted tokens of lower rank, symbols of higher rank |
| K, the query stream | T + K .. T + 2K - 1 | r - 1 | predicted tokens of lower rank, symbols of rank r and above |

All see the rest of the row. So every state sees each position once: its token or the symbol in its place. In XLNet a
query does not know that positions exist whose tokens come later in the order.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bertjax.models.dropout import dropout, split
from bertjax.models.visibility import Queries, Visibility, at_columns


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

    def begin(self, encoder: Any, row: Sequence[jax.Array], key: jax.Array | None) -> jax.Array:
        """Return the states [B, T + K, D] before the first layer.

        Args:
          encoder: embeds tokens, and has the first state of a query, the same for all but for dropout.
          row: `tokens_BT`, `positions_BT`, `segments_BT` and `examples_BT`.
          key: dropout key; None for no dropout.
        """
        token_key, query_key = (None, None) if key is None else split(key, 2)
        hidden_BTD = encoder.embed(*row, token_key)
        query_D, shape = encoder.embeddings.query, (*self.columns_BK.shape, hidden_BTD.shape[-1])
        query_BKD = jnp.broadcast_to(query_D.astype(hidden_BTD.dtype), shape)
        return jnp.concatenate([hidden_BTD, dropout(query_BKD, encoder.config.dropout, query_key)], axis=1)

    def visibility(self, texts_BT: jax.Array) -> Visibility:
        """Return which token is visible from which rank on."""
        return Visibility(texts_BT, rank_BT=self.rank_BT)

    def placed(self, positions: Any) -> Any:
        """Return what layers read about the positions of all content states, given those of the row."""
        return positions

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


_ALWAYS = jnp.iinfo(jnp.int32).max


class CompensatedStreams(NamedTuple):
    """Columns and ranks of the predicted tokens.

    Attributes:
      columns_BK: int, columns of the predicted tokens.
      rank_BT: int, the place of each predicted token in the order, from 1 on; 0 for the other tokens.
      answers_BK: int, the predicted tokens themselves; -1 for empty places.
    """

    columns_BK: jax.Array
    rank_BT: jax.Array
    answers_BK: jax.Array

    @property
    def rank_BK(self) -> jax.Array:
        """Ranks of the predicted tokens."""
        return at_columns(self.rank_BT, self.columns_BK)

    def begin(self, encoder: Any, row: Sequence[jax.Array], key: jax.Array | None) -> jax.Array:
        """Return the states [B, T + 2K, D] before the first layer: row, predicted tokens, query stream.

        A query starts as the symbol in its column. For the arguments see `Streams`.
        """
        token_key, answer_key = (None, None) if key is None else split(key, 2)
        hidden_BTD = encoder.embed(*row, token_key)
        at_read = (at_columns(values_BT, self.columns_BK) for values_BT in row[1:])
        answers_BKD = encoder.embed(jnp.maximum(self.answers_BK, 0), *at_read, answer_key)
        query_BKD = jnp.take_along_axis(hidden_BTD, self.columns_BK[..., None], axis=1)
        return jnp.concatenate([hidden_BTD, answers_BKD, query_BKD], axis=1)

    def visibility(self, texts_BT: jax.Array) -> Visibility:
        """Return which content state, of T + K, is visible from which rank on, and up to which."""
        texts_BK = jnp.where(self.answers_BK >= 0, at_columns(texts_BT, self.columns_BK), 0)
        ends_BT, ends_BK = jnp.where(self.rank_BT > 0, self.rank_BT, _ALWAYS), jnp.full_like(self.rank_BK, _ALWAYS)
        return Visibility(
            jnp.concatenate([texts_BT, texts_BK], axis=1),
            rank_BT=jnp.concatenate([jnp.zeros_like(self.rank_BT), self.rank_BK], axis=1),
            end_BT=jnp.concatenate([ends_BT, ends_BK], axis=1),
        )

    def placed(self, positions: Any) -> Any:
        """Return what layers read about the positions of all content states, given those of the row."""
        return positions._replace(further_BK=self.columns_BK)

    def content(self, states_BSD: jax.Array) -> jax.Array:
        """Return the states that both streams attend to, [B, T + K, D]."""
        return states_BSD[:, : self.rank_BT.shape[1] + self.columns_BK.shape[1]]

    def queries(self, states_BSD: jax.Array, is_last: bool) -> Queries:
        """Return the states that attend. In the last layer only the query stream does, since nothing else is read."""
        tokens, predicted = self.rank_BT.shape[1], self.columns_BK.shape[1]
        if is_last:
            return Queries(states_BSD[:, tokens + predicted :], self.columns_BK, self.rank_BK - 1)
        columns_BT = jnp.broadcast_to(jnp.arange(tokens), self.rank_BT.shape)
        columns_BS = jnp.concatenate([columns_BT, self.columns_BK, self.columns_BK], axis=1)
        ranks = jnp.zeros_like(self.rank_BT), self.rank_BK, self.rank_BK - 1
        return Queries(states_BSD, columns_BS, jnp.concatenate(ranks, axis=1), tokens)
