"""DeBERTa-v3's layer: BERT's with disentangled attention (He et al., 2021, arXiv 2006.03654, section 3.1).

A word and a distance between two words are embedded apart. The logit for query i and key j is the sum of three
products, divided by sqrt(3 C): content to content, content to position and position to content,

    q_i k_j + q_i K_d + k_j Q_d,    d = bucket(i - j)

with C the width of a head. K and Q are projections of the distance embeddings. Since DeBERTa-v2 these have the same
kernels as words, and far distances share logarithmic buckets (He et al., 2021, arXiv 2111.09543, and their code,
microsoft/DeBERTa, DeBERTa/deberta/disentangled_attention.py and da_utils.py). All layers read one table of distances,
under a layer norm. Words are embedded without positions.

Both terms with distances are added to the products that a kernel computes, so `runtime.attention=auto` takes `plain`.
"""

import dataclasses
import math
from typing import ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.models.attention import SelfAttention
from bertjax.models.bert import BertLayer, products
from bertjax.models.blocks.base import Block, check_heads, check_no_position_table
from bertjax.models.blocks.xlnet import columns_of, relative_shift
from bertjax.models.config import EncoderConfig
from bertjax.models.layers import Dense, layer_norm, precision_of
from bertjax.models.visibility import Placed, Queries, Visibility
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting

# Weight of each of the three terms.
_SHARE = 3**-0.5


@dataclasses.dataclass(frozen=True)
class DebertaBlock(Block):
    """A post-norm Transformer layer with disentangled attention. The defaults are DeBERTa-v3's.

    The distance embeddings are not dropped out. In the authors' code each layer drops some of their channels, for all
    rows of a batch alike; here a row's draws do not depend on the other rows.

    Attributes:
      buckets: buckets of distances to either side. Up to half of them hold one distance each, the others grow.
      max_distance: distance in the last bucket, which also holds all larger ones.
    """

    kind: str = dataclasses.field(init=False, default="deberta")
    buckets: int = setting(256, least=2)
    max_distance: int = 512

    has_attention_terms = True

    def check(self, config):
        check_heads(config)
        check_no_position_table(config, "has distances between tokens in attention")
        if self.max_distance < (least := self.buckets // 2 + 2):
            raise UserError(
                f"model.block.max_distance={self.max_distance} must be at least {least} with model.block.buckets="
                f"{self.buckets}, of which half hold one distance each; DeBERTa-v3 has 512"
            )

    def layer(self, config):
        return DebertaLayer(config, parent=None)

    def shared_module(self, config):
        return DistanceEmbeddings(config, parent=None)

    def products(self, config):
        # Two more products of each query, and of each key, with the 2 T distances of a row.
        return products(config, pairs=6)


class Distances(NamedTuple):
    """Embeddings of the buckets that occur in rows of T tokens.

    Attributes:
      embeddings_UD: one row per bucket, after the layer norm.
      rows_R: int, R = 2T; the row of the distance T - r, query minus key.
    """

    embeddings_UD: jax.Array
    rows_R: np.ndarray


class DistanceEmbeddings(nn.Module):
    """The table of distance embeddings, and its norm."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, positions_BT: jax.Array, segments_BT: jax.Array) -> Distances:
        """Return the distances in rows of T tokens."""
        config, block, seq_len = self.config, cast(DebertaBlock, self.config.block), positions_BT.shape[1]
        init = nn.initializers.truncated_normal(config.init_stddev)
        table_SD = self.param("embedding", init, (2 * block.buckets, config.width))
        numbers_R = bucket_of(seq_len - np.arange(2 * seq_len), block.buckets, block.max_distance) + block.buckets
        # Short rows need few buckets, and each layer projects only those.
        used_U, rows_R = np.unique(np.clip(numbers_R, 0, 2 * block.buckets - 1), return_inverse=True)
        return Distances(layer_norm(config, "norm")(jnp.asarray(table_SD)[used_U]), rows_R)


def bucket_of(distances: np.ndarray, buckets: int, max_distance: int) -> np.ndarray:
    """Return the buckets of distances, int64: -buckets to buckets, of which a table has the first 2 * buckets.

    A distance up to `buckets // 2` is its own bucket. Beyond that, buckets grow by a constant factor, and `max_distance
    - 1` is in the last but one of them.
    """
    middle, sizes = buckets // 2, np.abs(distances)
    growth = np.log((max_distance - 1) / middle) / (middle - 1) if middle > 1 else math.inf
    far = middle + np.ceil(np.log(np.maximum(sizes, middle) / middle) / growth)
    return np.where(sizes <= middle, distances, np.sign(distances) * far).astype(np.int64)


class DisentangledAttention(SelfAttention):
    """Attention with distances, which pass through the kernels of queries and keys."""

    def setup(self):
        # Named here, not where they are used, because each is applied to words and to distances.
        self.query, self.key = (Dense(self.config, self.config.context_width) for _ in range(2))

    @nn.compact
    def __call__(
        self,
        queries: Queries | None,
        keys_BTD: jax.Array,
        values_BTD: jax.Array,
        visibility: Visibility,
        key: jax.Array | None,
        positions: Distances,
    ) -> jax.Array:
        """Return what `SelfAttention` does; `positions` are the distances of the row."""
        query_UHD, key_UHD = (
            self.projected(name, positions.embeddings_UD, self.config.heads) for name in ("query", "key")
        )
        terms = DistanceTerms(query_UHD, key_UHD, positions.rows_R)
        return super().__call__(queries, keys_BTD, values_BTD, visibility, key, terms)

    def projected(self, name, states, heads):
        if name == "value":
            return super().projected(name, states, heads)
        return getattr(self, name)(states).reshape(*states.shape[:-1], heads, -1)

    def attend(self, inputs):
        # Three terms, so logits are divided by sqrt(3 C). Attention itself divides by sqrt(C).
        return super().attend(inputs._replace(query_BQHD=inputs.query_BQHD * _SHARE))


class DistanceTerms(NamedTuple):
    """Projected distances of one layer, as `bertjax.models.attention.Positions` describes.

    Attributes:
      query_UHD, key_UHD: embeddings of the buckets, projected as queries and as keys.
      rows_R: see `Distances`.
    """

    query_UHD: jax.Array
    key_UHD: jax.Array
    rows_R: np.ndarray

    def apply(self, config: EncoderConfig, query_BQHD: jax.Array, key_BTHD: jax.Array, at: Queries | None) -> Placed:
        """Return queries and keys as they are, and the sum of both terms with distances."""
        columns_BQ, tokens = columns_of(at, key_BTHD.shape[1])
        options = {"precision": precision_of(key_BTHD.dtype), "preferred_element_type": jnp.float32}
        to_position = jnp.einsum("bqhd,rhd->bhqr", query_BQHD * _SHARE, self.key_UHD[self.rows_R], **options)
        bias_BHQT = relative_shift(to_position, columns_BQ, tokens)
        # From the side of the key, the distance i - j has the opposite sign, which is the opposite end of the rows.
        opposite_R = np.roll(self.rows_R[::-1], 1)
        from_position = jnp.einsum("bthd,rhd->bhtr", key_BTHD * _SHARE, self.query_UHD[opposite_R], **options)
        by_key_BHQT = jnp.swapaxes(relative_shift(from_position, None, key_BTHD.shape[1]), 2, 3)
        if columns_BQ is not None:
            by_key_BHQT = jnp.take_along_axis(by_key_BHQT, columns_BQ[:, None, :, None], axis=2)
        return query_BQHD, key_BTHD, (bias_BHQT + by_key_BHQT) * key_BTHD.shape[-1] ** -0.5


class DebertaLayer(BertLayer):
    """BERT's layer with disentangled attention."""

    attention_kind: ClassVar[type[SelfAttention]] = DisentangledAttention
