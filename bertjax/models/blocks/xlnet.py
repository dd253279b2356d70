"""XLNet's layer: BERT's with relative positions and segments (Yang et al., 2019, arXiv 1906.08237, section 2).

Transformer-XL's attention (Dai et al., 2019, arXiv 1901.02860, section 3.3) with XLNet's segment term (section 2.5).
The logit for query q and key k is

    (q + u) k + (q + v) W r_distance + (q + w) s_same

with r a sinusoid, and u, v, w, W and both s learned per layer. Tokens attend only within their own example, so the
distance between two tokens is the distance between their columns. Attention has no other biases, and words are embedded
without a norm. The layer also computes XLNet's second stream of states, see `bertjax.models.streams`.
"""

import dataclasses
import functools
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.bert import BertLayer, products
from bertjax.models.blocks.base import Block, check_heads
from bertjax.models.blocks.llama import WordEmbeddingLayer
from bertjax.models.config import EncoderConfig
from bertjax.models.embeddings import Embeddings
from bertjax.models.layers import Dense, precision_of
from bertjax.models.streams import Streams
from bertjax.models.visibility import Placed, Queries, at_columns
from bertjax.runtime.errors import UserError

_BASE = 10_000.0


def columns_of(queries: Queries | None, tokens: int) -> tuple[jax.Array | None, int]:
    """Return the columns of queries, None for all tokens, and T if the first T of them are all tokens, else 0."""
    return (None, tokens) if queries is None else (queries.columns_BQ, queries.tokens)


class RelativePositions(NamedTuple):
    """Distances and segments in a batch.

    Attributes:
      distances_RD: float32, R = 2T; row r is the sinusoid for distance T - r (query minus key).
      segments_BT: int; None for a model without segments.
    """

    distances_RD: jax.Array
    segments_BT: jax.Array | None

    def apply(self, config: EncoderConfig, query_BQHD: jax.Array, key_BTHD: jax.Array, at: Queries | None) -> Placed:
        """Return queries, keys and bias, as `bertjax.models.attention.Positions` describes."""
        columns_BQ, tokens = columns_of(at, key_BTHD.shape[1])
        query_BQHD, bias_BHQT = RelativeBias(config, name="relative")(query_BQHD, self, columns_BQ, tokens)
        return query_BQHD, key_BTHD, bias_BHQT


def relative_positions(config: EncoderConfig, segments_BT: jax.Array) -> RelativePositions:
    """Return a batch's distance sinusoids (Vaswani et al., 2017, section 3.5; sines before cosines) and segments."""
    seq_len, channels = segments_BT.shape[1], config.width // 2
    frequencies_C = _BASE ** (-jnp.arange(channels, dtype=jnp.float32) / channels)
    angles_RC = (seq_len - jnp.arange(2 * seq_len, dtype=jnp.float32))[:, None] * frequencies_C
    distances_RD = jnp.concatenate([jnp.sin(angles_RC), jnp.cos(angles_RC)], axis=-1)
    return RelativePositions(distances_RD, segments_BT if config.embeddings.segments else None)


class RelativeBias(nn.Module):
    """Distance and segment terms for the attention logits."""

    config: EncoderConfig

    @nn.compact
    def __call__(
        self, query_BQHC: jax.Array, positions: RelativePositions, columns_BQ: jax.Array | None, tokens: int
    ) -> tuple[jax.Array, jax.Array]:
        """Return queries [B, Q, H, C] for the product with keys, and the float32 bias [B, H, Q, T] to add to it.

        Args:
          columns_BQ: int, columns of the queries; None if they are all tokens.
          tokens: see `relative_shift`.
        """
        config, (*_, heads, channels) = self.config, query_BQHC.shape
        init, dtype = nn.initializers.truncated_normal(config.init_stddev), query_BQHC.dtype

        def biased(name: str) -> jax.Array:
            return query_BQHC + self.param(f"{name}_bias", init, (heads, channels)).astype(dtype)

        rows = Dense(config, config.context_width, use_bias=False, name="distance")(positions.distances_RD)
        rows_RHC = rows.reshape(-1, heads, channels)
        product = functools.partial(jnp.einsum, precision=precision_of(dtype))
        bias_BHQT = relative_shift(product("bqhc,rhc->bhqr", biased("distance"), rows_RHC), columns_BQ, tokens)
        if positions.segments_BT is not None:
            segment_2HC = self.param("segment", init, (2, heads, channels)).astype(dtype)
            # Only two products per query and head: with "same segment" and with "other segment".
            same, other = jnp.moveaxis(product("bqhc,shc->bhqs", biased("segment"), segment_2HC), -1, 0)
            keys_BT = positions.segments_BT
            is_same_BQT = at_columns(keys_BT, columns_BQ)[:, :, None] == keys_BT[:, None, :]
            bias_BHQT += jnp.where(is_same_BQT[:, None], same[..., None], other[..., None])
        # The paper divides these terms by sqrt(C) too; attention divides its products only.
        return biased("content"), bias_BHQT.astype(jnp.float32) * channels**-0.5


def relative_shift(products_BHQR: jax.Array, columns_BQ: jax.Array | None, tokens: int) -> jax.Array:
    """Select each query's products with its T distances: from [B, H, Q, R] to [B, H, Q, T].

    For the query in column c, they start at row T - c, its distance to column 0. For all T tokens this is a reshape:
    viewed as rows of length 2T - 1, the starts line up in one column (Dai et al., 2019, appendix B).

    Args:
      products_BHQR: products of queries with all distances.
      columns_BQ: int, columns of the queries; None if they are all tokens.
      tokens: T if the first T queries are all tokens in order, else 0.
    """
    batch, heads, queries, distances = products_BHQR.shape
    seq_len = distances // 2

    def cut(product_HR: jax.Array, column: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(product_HR, seq_len - column, seq_len, axis=1)

    parts = []
    if tokens:
        # Transformer-XL's shift trick: no gather, and a cheap gradient.
        flat = products_BHQR[:, :, :tokens].reshape(batch, heads, -1)[..., seq_len:]
        parts.append(flat.reshape(batch, heads, seq_len, distances - 1)[..., :seq_len])
    if queries > tokens:
        # The other queries (XLNet's query stream, or a partly read last layer) are in arbitrary columns.
        cut_queries = jax.vmap(jax.vmap(cut, in_axes=(1, 0), out_axes=1))
        parts.append(cut_queries(products_BHQR[:, :, tokens:], cast(jax.Array, columns_BQ)[:, tokens:]))
    return jnp.concatenate(parts, axis=2)


@dataclasses.dataclass(frozen=True)
class XLNetBlock(Block):
    """A post-norm Transformer layer with learned distance and segment terms in the attention logits."""

    kind: str = dataclasses.field(init=False, default="xlnet")

    has_attention_biases = False
    has_attention_terms = True
    streams = Streams

    def check(self, config):
        check_heads(config)
        if config.embeddings.kind != "xlnet":
            raise UserError(
                f"model.block.kind=xlnet has relative positions and segments, and model.embeddings.kind="
                f"{config.embeddings.kind} adds both to words; set model.embeddings.kind=xlnet"
            )
        if config.width % 2:
            raise UserError(f"model.block.kind=xlnet needs an even model.width, not {config.width}")

    def layer(self, config):
        return BertLayer(config, parent=None)

    def positions(self, config, positions_BT, segments_BT):
        return relative_positions(config, segments_BT)

    def products(self, config):
        # Transformer-XL multiplies each query with 2 T distances.
        return products(config, pairs=4)


@dataclasses.dataclass(frozen=True)
class XLNetEmbeddings(Embeddings):
    """Only word embeddings, without a norm. Of `segments` only zero or nonzero matters: attention compares them."""

    kind: str = dataclasses.field(init=False, default="xlnet")

    def check(self, config):
        super().check(config)
        if config.block.streams is not Streams:
            raise UserError(
                "model.embeddings.kind=xlnet leaves positions and segments to the attention of model.block.kind=xlnet, "
                f"not {config.block.kind}; set model.embeddings.kind=bert"
            )

    def layer(self, config):
        return XLNetEmbeddingLayer(config, parent=None)


class XLNetEmbeddingLayer(WordEmbeddingLayer):
    """Word embeddings, and `query`, the embedding of a token that is not seen (section 2.3)."""

    config: EncoderConfig

    def setup(self):
        super().setup()
        init = nn.initializers.truncated_normal(self.config.init_stddev)
        self.query = self.param("query", init, (self.config.embedded_width,))
