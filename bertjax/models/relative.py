"""Relative positions and segments: of two tokens, their distance and whether they are of one segment.

Transformer-XL's attention (Dai et al., 2019, arXiv 1901.02860, section 3.3) with XLNet's segment term (Yang et al.,
2019, arXiv 1906.08237, section 2.5). The logit of a query q and a key k is

    (q + u) k + (q + v) W r_distance + (q + w) s_same

with r a sinusoid, and u, v, w, W and the two s learned in each layer. Examples of a row see only themselves, so that
the distance of two tokens is that of their columns.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.config import EncoderConfig
from bertjax.models.layers import Dense

_BASE = 10_000.0


class Relations(NamedTuple):
    """What the tokens of a batch are to each other.

    Attributes:
      distances_RD: float32, R = 2T; row r is the sinusoid of the distance T - r, query minus key.
      segments_BT: int; None where segments are none.
    """

    distances_RD: jax.Array
    segments_BT: jax.Array | None


def relations(config: EncoderConfig, segments_BT: jax.Array) -> Relations:
    """Those of rows with these segments (Vaswani et al., 2017, section 3.5, sines first and cosines after them)."""
    seq_len, channels = segments_BT.shape[1], config.width // 2
    frequencies_C = _BASE ** (-jnp.arange(channels, dtype=jnp.float32) / channels)
    angles_RC = (seq_len - jnp.arange(2 * seq_len, dtype=jnp.float32))[:, None] * frequencies_C
    distances_RD = jnp.concatenate([jnp.sin(angles_RC), jnp.cos(angles_RC)], axis=-1)
    return Relations(distances_RD, segments_BT if config.segments else None)


class RelativeTerms(nn.Module):
    """What distance and segment add to the logits of attention."""

    config: EncoderConfig

    @nn.compact
    def __call__(
        self, query_BQHC: jax.Array, relations: Relations, columns_BQ: jax.Array | None, tokens: int
    ) -> tuple[jax.Array, jax.Array]:
        """Queries for the product with keys, and the logits to add to it.

        Args:
          query_BQHC: of any tokens.
          relations: of the tokens.
          columns_BQ: int, where the queries sit; None where all tokens ask and no more.
          tokens: see `shifted`.

        Returns:
          [B, Q, H, C], and float32 [B, H, Q, T].
        """
        config, (*_, heads, channels) = self.config, query_BQHC.shape
        init, dtype = nn.initializers.truncated_normal(config.init_stddev), query_BQHC.dtype

        def biased(name: str) -> jax.Array:
            return query_BQHC + self.param(f"{name}_bias", init, (heads, channels)).astype(dtype)

        rows_RD = Dense(config, config.width, use_bias=False, name="distance")(relations.distances_RD)
        rows_RHC = rows_RD.reshape(-1, heads, channels)
        terms_BHQT = shifted(jnp.einsum("bqhc,rhc->bhqr", biased("distance"), rows_RHC), columns_BQ, tokens)
        if relations.segments_BT is not None:
            segment_2HC = self.param("segment", init, (2, heads, channels)).astype(dtype)
            same, other = jnp.moveaxis(jnp.einsum("bqhc,shc->bhqs", biased("segment"), segment_2HC), -1, 0)
            keys_BT = relations.segments_BT
            own_BQ = keys_BT if columns_BQ is None else jnp.take_along_axis(keys_BT, columns_BQ, axis=1)
            is_same_BQT = own_BQ[:, :, None] == keys_BT[:, None, :]
            terms_BHQT += jnp.where(is_same_BQT[:, None], same[..., None], other[..., None])
        return biased("content"), terms_BHQT.astype(jnp.float32)


def shifted(products_BHQR: jax.Array, columns_BQ: jax.Array | None, tokens: int) -> jax.Array:
    """For each query, of its products with all distances those with the T tokens of its row: [B, H, Q, T].

    The query in column c begins at row T - c, that of its distance to column 0. For all T tokens that is a change of
    shape: in rows of 2T - 1 the beginnings lie below each other (Dai et al., 2019, appendix B).

    Args:
      products_BHQR: of queries and distances.
      columns_BQ: int, where the queries sit; None where all tokens ask and no more.
      tokens: how many of the first queries are all T tokens in their order: T or 0.
    """
    batch, heads, queries, distances = products_BHQR.shape
    seq_len = distances // 2

    def cut(product_HR: jax.Array, column: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(product_HR, seq_len - column, seq_len, axis=1)

    found = []
    if tokens:
        flat = products_BHQR[:, :, :tokens].reshape(batch, heads, -1)[..., seq_len:]
        found.append(flat.reshape(batch, heads, seq_len, distances - 1)[..., :seq_len])
    if queries > tokens:
        of_queries = jax.vmap(jax.vmap(cut, in_axes=(1, 0), out_axes=1))
        found.append(of_queries(products_BHQR[:, :, tokens:], columns_BQ[:, tokens:]))
    return jnp.concatenate(found, axis=2)
