"""The layer of MPNet (Song et al., 2020, arXiv 2004.09297): BERT's, with learned biases for distances of tokens.

The bias is T5's (Raffel et al., 2020, arXiv 1910.10683, section 2.1): distances share buckets, and each bucket has one
number per head, which is added to the scaled products of queries and keys. All layers read the same table.
"""

import dataclasses
import math
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.models.bert import BertLayer, products
from bertjax.models.blocks.base import Block, check_has_positions, check_heads
from bertjax.models.blocks.xlnet import columns_of, relative_shift
from bertjax.models.config import EncoderConfig
from bertjax.models.streams import CompensatedStreams
from bertjax.models.visibility import Placed, Queries
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting


@dataclasses.dataclass(frozen=True)
class MPNetBlock(Block):
    """A post-norm Transformer layer with biases for distances. The defaults are MPNet's.

    Attributes:
      buckets: number of buckets, for both sides together.
      max_distance: distance from which on all distances share the last bucket of their side.
    """

    kind: str = dataclasses.field(init=False, default="mpnet")
    buckets: int = setting(32, least=4)
    max_distance: int = 128

    has_attention_terms = True
    has_shared_heads = True
    streams = CompensatedStreams

    def check(self, config):
        check_heads(config)
        check_has_positions(config)
        if self.buckets % 4:
            raise UserError(
                f"model.block.buckets={self.buckets} must be a multiple of 4: half of them are for each side, and half "
                "of those for one distance each; 32 is usual"
            )
        if self.max_distance <= self.buckets // 4:
            raise UserError(
                f"model.block.max_distance={self.max_distance} must exceed {self.buckets // 4}, the distances with a "
                f"bucket of their own of model.block.buckets={self.buckets}"
            )

    def layer(self, config):
        return BertLayer(config, parent=None)

    def shared_module(self, config):
        return BucketBias(config, parent=None)

    def products(self, config):
        return products(config)


class DistanceBias(NamedTuple):
    """Biases for the tokens of a row. Tokens attend only within their own example, so columns have their distances.

    Attributes:
      bias_HTT: float32, for each head, query and key.
      further_BK: int, columns of keys after the row's, see `bertjax.models.streams`; None if there are none.
    """

    bias_HTT: jax.Array
    further_BK: jax.Array | None = None

    def apply(self, config: EncoderConfig, query_BQHD: jax.Array, key_BTHD: jax.Array, at: Queries | None) -> Placed:
        """Return queries, keys and bias, as `bertjax.models.attention.Positions` describes."""
        columns_BQ, tokens = columns_of(at, key_BTHD.shape[1])
        bias_BHQT = self.bias_HTT[None]  # the same for all rows
        if columns_BQ is not None:
            # Rows of a table, which is cheaper than single numbers.
            others_BHQT = jnp.moveaxis(self.bias_HTT[:, columns_BQ[:, tokens:]], 0, 1)
            tokens_BHTT = jnp.broadcast_to(bias_BHQT, (len(columns_BQ), *self.bias_HTT.shape))
            bias_BHQT = jnp.concatenate([tokens_BHTT, others_BHQT], axis=2) if tokens else others_BHQT
        if self.further_BK is not None:
            further_BHQK = jnp.take_along_axis(bias_BHQT, self.further_BK[:, None, None], axis=-1)
            bias_BHQT = jnp.concatenate([bias_BHQT, further_BHQK], axis=-1)
        return query_BQHD, key_BTHD, bias_BHQT


class BucketBias(nn.Module):
    """The table of biases, [buckets, H]."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, positions_BT: jax.Array, segments_BT: jax.Array) -> DistanceBias:
        """Return the biases in rows of T tokens."""
        config, block, tokens = self.config, cast(MPNetBlock, self.config.block), positions_BT.shape[1]
        init = nn.initializers.truncated_normal(config.init_stddev)
        table_NH = jnp.asarray(self.param("bias", init, (block.buckets, config.heads)), jnp.float32)
        # Row r is for the distance T - r, as in `relative_shift`, which makes a matrix of them without a gather.
        buckets_R = bucket_of(tokens - np.arange(2 * tokens), block.buckets, block.max_distance)
        bias_HR = table_NH[buckets_R].T
        products_1HTR = jnp.broadcast_to(bias_HR[None, :, None], (1, config.heads, tokens, 2 * tokens))
        return DistanceBias(relative_shift(products_1HTR, None, tokens)[0])


def bucket_of(distances: np.ndarray, buckets: int, max_distance: int) -> np.ndarray:
    """Return the bucket of each distance, query minus key.

    The first half of the buckets is for keys before the query, the second for keys after it. In each, the first half is
    for one distance each. The others widen logarithmically up to the distance `max_distance`.
    """
    side, exact = buckets // 2, buckets // 4
    lengths = np.abs(distances)
    # In float32, as in the published code: at 2^n in float64 the quotient may be on the other side of a whole number.
    ratios = np.log(np.maximum(lengths, exact).astype(np.float32) / np.float32(exact))
    steps = ratios / np.float32(math.log(max_distance / exact)) * np.float32(side - exact)
    wide = np.minimum(exact + steps.astype(np.int64), side - 1)
    return np.where(distances < 0, side, 0) + np.where(lengths < exact, lengths, wide)
