"""The layer of ModernBERT (Warner et al., 2024, arXiv 2412.13663, section 2.1), Ettin and mmBERT.

It differs from BERT's in five ways: norms are on the inputs of attention and feed-forward network, queries and keys are
rotated by their positions, most layers see only their neighborhood, the feed-forward network has a gate, and nothing
below the decoder has biases.
"""

import dataclasses
import math
from typing import cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.attention import SelfAttention
from bertjax.models.bert import feed_forward, products
from bertjax.models.blocks.base import Block, check_heads, check_no_position_table
from bertjax.models.config import EncoderConfig
from bertjax.models.dropout import dropout, split
from bertjax.models.layers import kept, normalization
from bertjax.models.other_heads import LabelHead
from bertjax.models.rotary import Rotary, check_rotary, rotary_at
from bertjax.models.visibility import LayerInputs, Visibility
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting

# A window that no row exceeds.
_EVERYTHING = jnp.iinfo(jnp.int32).max


@dataclasses.dataclass(frozen=True)
class ModernBlock(Block):
    """A pre-norm Transformer layer with rotary positions. The defaults are ModernBERT's.

    Attributes:
      rotary_base: longest rotary wavelength divided by 2 pi (Su et al., 2021, arXiv 2104.09864), in global layers.
      local_rotary_base: the same in local layers, whose distances are at most `window`.
      window: tokens to either side in local layers (Beltagy et al., 2020, arXiv 2004.05150, section 3.1); 0 for none.
      global_every: period of global layers, which see the whole example: the first in every `global_every` layers is
        global and the others are local; 1 if all layers are global.
      gated: multiply the activations in the feed-forward network with a second dense layer; with GELU this is GEGLU
        (Shazeer, 2020, arXiv 2002.05202).
      biases: whether norms and dense layers have biases; the decoder and classifiers always do.
    """

    kind: str = dataclasses.field(init=False, default="modern")
    rotary_base: float = setting(160_000.0, above=1)
    local_rotary_base: float = setting(10_000.0, above=1)
    window: int = setting(64, least=0)
    global_every: int = setting(3, least=1)
    gated: bool = True
    biases: bool = False

    has_final_norm = True
    has_pooler = False
    example_head = token_head = LabelHead

    @property
    def position_settings(self):
        return ("rotary_base", "local_rotary_base") if self.window else ("rotary_base",)

    @property
    def has_biases(self):
        return self.biases

    @property
    def has_attention_biases(self):
        return self.biases

    def check(self, config):
        check_heads(config)
        check_no_position_table(config)
        check_rotary(config)
        # One without the other would silently have no effect.
        if (self.window > 0) != (self.global_every > 1):
            raise UserError(
                f"model.block.window={self.window} and model.block.global_every={self.global_every} contradict each "
                "other; local layers need a window above 0 and a global_every above 1"
            )

    def layer(self, config):
        return ModernLayer(config, parent=None)

    def positions(self, config, positions_BT, segments_BT):
        """Return the rotations in global layers and, if there are local layers, in those."""
        bases = [getattr(self, name) for name in self.position_settings]
        return tuple(rotary_at(positions_BT, config.head_channels, base) for base in bases)

    def at_depth(
        self, number: jax.Array | int, visibility: Visibility, positions: tuple[Rotary, ...]
    ) -> tuple[Visibility, Rotary]:
        """Return what layer `number` sees, and its rotation of queries and keys."""
        if not self.window:
            return visibility, positions[0]
        is_global = number % self.global_every == 0
        # Data, not a branch: the number is traced, so the scan compiles one layer body for local and global layers.
        window = jnp.where(is_global, _EVERYTHING, self.window).astype(jnp.int32)
        rotary = jax.tree.map(lambda whole, local: jnp.where(is_global, whole, local), *positions)
        return visibility._replace(window=window, widest=self.window), rotary

    def output_stddev(self, config):
        # Each layer adds two outputs to the hidden states. Their sum starts with the same variance for any depth
        # (Radford et al., 2019, GPT-2, section 2.3; "Megatron" in ModernBERT's code).
        return config.init_stddev / math.sqrt(2 * config.layers)

    def products(self, config):
        return products(config, feedforward=3 if self.gated else 2)

    def kind_at(self, number):
        if number == 0:
            return "first (without a norm before attention)"
        return "global" if number % self.global_every == 0 else "local"

    def most_visible(self, layer):
        # A local layer attends to a full window, also at example ends.
        return 2 * self.window + 1 if layer % self.global_every else math.inf


class ModernLayer(nn.Module):
    """One pre-norm layer (Xiong et al., 2020, arXiv 2002.04745).

    The first layer has no norm before attention, because the embeddings end with one. Layers are stacked, so it still
    has a row of the norm's parameters, which nothing reads.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, inputs: LayerInputs) -> jax.Array:
        """Return the new hidden states; positions are the rotations of `ModernBlock.positions`."""
        hidden_BTD, visibility, key, queries, positions, number = inputs
        config, rate = self.config, self.config.dropout
        attention_key, output_key, feedforward_key = [None] * 3 if key is None else split(key, 3)
        attention_norm, output_norm = normalization(config, "attention_norm"), normalization(config, "output_norm")
        # Only the inputs of both parts are normalized; their outputs are added to the states as they are.
        sums = inputs.own

        def normed(states: jax.Array) -> jax.Array:
            return jnp.where(number == 0, states, attention_norm(states))

        normed_BTD = normed(hidden_BTD)
        normed_queries = queries and queries._replace(hidden_BQD=normed(queries.hidden_BQD))
        visibility, rotary = cast(ModernBlock, config.block).at_depth(number, visibility, positions)
        attention = SelfAttention(config, name="attention")
        attended = attention(normed_queries, normed_BTD, normed_BTD, visibility, attention_key, rotary)
        sums = kept(sums + dropout(attended, rate, output_key))
        output = feed_forward(self, output_norm(sums), visibility, queries, gated=cast(ModernBlock, config.block).gated)
        return sums + dropout(output, rate, feedforward_key)
