"""The layer of recent encoders, such as ModernBERT (Warner et al., 2024, arXiv 2412.13663, section 2.1).

It differs from BERT's in five ways: norms are on the inputs of attention and feed-forward network, queries and keys are
rotated by their positions, most layers see only their neighborhood, the feed-forward network has a gate, and nothing
below the heads has biases.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.attention import SelfAttention
from bertjax.models.bert import check_heads, feed_forward, products
from bertjax.models.blocks.base import Block, check_no_position_table
from bertjax.models.config import EncoderConfig
from bertjax.models.dropout import dropout
from bertjax.models.layers import normalization
from bertjax.models.random import split
from bertjax.models.remat import kept
from bertjax.models.rotary import Rotary, rotary_at
from bertjax.models.visibility import Queries, Visibility
from bertjax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class ModernBlock(Block):
    """A pre-norm Transformer layer with rotary positions. The defaults are ModernBERT's.

    Attributes:
      rotary_base: longest rotary wavelength divided by 2 pi (Su et al., 2021, arXiv 2104.09864).
      window: tokens to either side in local layers (Beltagy et al., 2020, arXiv 2004.05150, section 3.1); 0 for none.
      global_every: period of global layers, which see the whole example: the first in every `global_every` layers is
        global and the others are local; 1 if all layers are global.
      gated: multiply the activations in the feed-forward network with a second dense layer; with GELU this is GEGLU
        (Shazeer, 2020, arXiv 2002.05202).
      biases: whether dense layers and norms below the heads have biases.
    """

    kind: str = dataclasses.field(init=False, default="modern")
    rotary_base: float = 10_000.0
    window: int = 64
    global_every: int = 3
    gated: bool = True
    biases: bool = False

    has_final_norm = True

    @property
    def has_biases(self):
        return self.biases

    @property
    def has_attention_biases(self):
        return self.biases

    def check(self, config):
        check_heads(config, f"model.width={config.width}")
        check_no_position_table(config)
        if config.head_channels % 2:
            raise UserError(
                f"model.block.kind=modern rotates pairs of channels, and heads are {config.head_channels} wide; choose "
                "another number of model.heads"
            )
        if self.rotary_base <= 1.0:
            raise UserError(f"model.block.rotary_base={self.rotary_base} must be above 1; 10000 is usual")
        if self.window < 0:
            raise UserError(f"model.block.window={self.window} must not be negative; 0 lets every layer see everything")
        if self.global_every < 1:
            raise UserError(f"model.block.global_every={self.global_every} must be at least 1")
        # One without the other would silently have no effect.
        if (self.window > 0) != (self.global_every > 1):
            raise UserError(
                f"model.block.window={self.window} and model.block.global_every={self.global_every} contradict each "
                "other; local layers need a window above 0 and a global_every above 1"
            )

    def layer(self, config):
        return ModernLayer(config, parent=None)

    def positions(self, config, positions_BT, segments_BT):
        return rotary_at(positions_BT, config.head_channels, self.rotary_base)

    def window_at(self, number):
        # A traced number: the scan compiles one layer body for local and global layers.
        if not self.window:
            return None
        return jnp.where(number % self.global_every == 0, jnp.iinfo(jnp.int32).max, self.window).astype(jnp.int32)

    def products(self, config):
        return products(config, feedforward=3 if self.gated else 2)

    def most_visible(self, layer):
        # A local layer attends to a full window, also at example ends.
        return 2 * self.window + 1 if layer % self.global_every else math.inf


class ModernLayer(nn.Module):
    """One pre-norm layer (Xiong et al., 2020, arXiv 2002.04745)."""

    config: EncoderConfig

    @nn.compact
    def __call__(
        self,
        hidden_BTD: jax.Array,
        visibility: Visibility,
        key: jax.Array | None = None,
        queries: Queries | None = None,
        positions: Rotary | None = None,
    ) -> jax.Array:
        """Return the new hidden states of all tokens, or of the `queries`.

        Args:
          hidden_BTD, visibility, key, queries: as in `BertLayer.__call__`.
          positions: rotations of queries and keys.
        """
        config, rate = self.config, self.config.dropout
        attention_key, output_key, feedforward_key = [None] * 3 if key is None else split(key, 3)
        attention_norm, output_norm = normalization(config, "attention_norm"), normalization(config, "output_norm")
        # Only the inputs of both parts are normalized; their outputs are added to the states as they are.
        sums = hidden_BTD if queries is None else queries.hidden_BQD
        normed_BTD = attention_norm(hidden_BTD)
        normed_queries = queries and queries._replace(hidden_BQD=attention_norm(queries.hidden_BQD))
        attention = SelfAttention(config, name="attention")
        attended = attention(normed_queries, normed_BTD, normed_BTD, visibility, attention_key, positions)
        sums = kept(sums + dropout(attended, rate, output_key))
        output = feed_forward(self, output_norm(sums), visibility, queries, gated=config.block.gated)
        return sums + dropout(output, rate, feedforward_key)
