"""Llama's layer (Touvron et al., 2023, arXiv 2302.13971, section 2.2) without its causal mask: EuroBERT and NeoBERT.

EuroBERT (Boizard et al., 2025, arXiv 2503.05500) has RMS norms before attention and feed-forward networks, rotary
positions, grouped queries and SwiGLU, without biases. Word embeddings are not normalized, and the masked-LM decoder is
not tied to them. NeoBERT (Le Breton et al., 2025, arXiv 2502.19587) has the same layer with a head of keys and values
per head of queries. Its decoder has biases, and its classifier reads BERT's pooler.
"""

import dataclasses

import jax
from flax import linen as nn

from bertjax.models.attention import SelfAttention
from bertjax.models.bert import feed_forward, products
from bertjax.models.blocks.base import Block, check_heads, check_no_position_table
from bertjax.models.config import EncoderConfig
from bertjax.models.dropout import dropout, split
from bertjax.models.embeddings import EmbeddingLayer, Embeddings, rows
from bertjax.models.layers import kept, normalization
from bertjax.models.other_heads import BiasedDecoderHead, DecoderHead, HiddenLayerHead
from bertjax.models.rotary import check_rotary, rotary_at
from bertjax.models.visibility import LayerInputs
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting


@dataclasses.dataclass(frozen=True)
class LlamaBlock(Block):
    """A pre-norm Transformer layer with RMS norms, rotary positions, grouped queries and SwiGLU: EuroBERT or NeoBERT.

    Attributes:
      key_value_heads: number of heads of keys and values; each serves the same number of consecutive heads of queries
        (Ainslie et al., 2023, arXiv 2305.13245). 0 for one per head of queries; that number itself becomes 0.
      rotary_base: longest rotary wavelength divided by 2 pi (Su et al., 2021, arXiv 2104.09864).
      decoder_bias: whether the masked-LM decoder has biases, as in NeoBERT.
      pooler: whether heads on examples read BERT's pooler, as in NeoBERT. Otherwise they have EuroBERT's hidden layer.
    """

    kind: str = dataclasses.field(init=False, default="llama")
    key_value_heads: int = setting(0, least=0)
    rotary_base: float = setting(10_000.0, above=1)
    decoder_bias: bool = False
    pooler: bool = False

    position_settings = ("rotary_base",)
    has_biases = has_attention_biases = False
    has_final_norm = True

    @property
    def has_pooler(self):
        return self.pooler

    @property
    def example_head(self):
        return None if self.pooler else HiddenLayerHead

    @property
    def masked_lm_head(self):
        return BiasedDecoderHead if self.decoder_bias else DecoderHead

    def check(self, config):
        check_heads(config)
        check_no_position_table(config)
        check_rotary(config)
        if self.key_value_heads and config.heads % self.key_value_heads:
            raise UserError(
                f"model.block.key_value_heads={self.key_value_heads} does not divide model.heads={config.heads}; "
                "choose a divisor, or 0 for one head of keys and values per head of queries"
            )

    def layer(self, config):
        return LlamaLayer(config, parent=None)

    def norm(self, config, name=None):
        """Return an RMS norm over the last axis (Zhang & Sennrich, 2019, arXiv 1910.07467), computed in float32."""
        return nn.RMSNorm(epsilon=config.norm_epsilon, dtype=config.execution.dtype, name=name)

    def positions(self, config, positions_BT, segments_BT):
        return rotary_at(positions_BT, config.head_channels, self.rotary_base)

    def products(self, config):
        return products(config, feedforward=3)._replace(tokens=2 * config.width * self._key_value_width(config))

    def tensor_widths(self, config):
        return *super().tensor_widths(config), self._key_value_width(config)

    def scaled(self, share):
        shared = self.key_value_heads and max(1, round(self.key_value_heads * share))
        return dataclasses.replace(self, key_value_heads=shared)

    def _key_value_width(self, config: EncoderConfig) -> int:
        return (self.key_value_heads or config.heads) * config.head_channels


class LlamaLayer(nn.Module):
    """One pre-norm layer (Xiong et al., 2020, arXiv 2002.04745)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, inputs: LayerInputs) -> jax.Array:
        """Return the new hidden states; queries and keys are rotated by their positions."""
        hidden_BTD, visibility, key, queries, positions, _ = inputs
        config, rate = self.config, self.config.dropout
        attention_key, output_key, feedforward_key = [None] * 3 if key is None else split(key, 3)
        norm = normalization(config, "attention_norm")
        # Only the inputs of both parts are normalized; their outputs are added to the states as they are.
        sums, normed_BTD = inputs.own, norm(hidden_BTD)
        normed_queries = queries and queries._replace(hidden_BQD=norm(queries.hidden_BQD))
        attention = GroupedAttention(config, name="attention")
        attended = attention(normed_queries, normed_BTD, normed_BTD, visibility, attention_key, positions)
        sums = kept(sums + dropout(attended, rate, output_key))
        normed = normalization(config, "output_norm")(sums)
        output = feed_forward(self, normed, visibility, queries, gated=True, activate=jax.nn.silu)  # SwiGLU
        return sums + dropout(output, rate, feedforward_key)


class GroupedAttention(SelfAttention):
    """Attention in which groups of heads of queries share one head of keys and values."""

    def projected(self, name, states, heads):
        shared = self.config.block.key_value_heads
        if name == "query" or not shared:
            return super().projected(name, states, heads)
        # Repeated for each head of queries, so that kernels, taps and analyses see H heads of everything.
        return super().projected(name, states, shared).repeat(heads // shared, axis=-2)


@dataclasses.dataclass(frozen=True)
class WordEmbeddings(Embeddings):
    """Word embeddings without a norm, as in Llama (Touvron et al., 2023, arXiv 2302.13971)."""

    kind: str = dataclasses.field(init=False, default="words")
    segments: int = 0

    def check(self, config):
        super().check(config)
        if self.segments:
            raise UserError(
                f"model.embeddings.kind=words has no table of segments for model.embeddings.segments={self.segments}; "
                "set it to 0"
            )

    def layer(self, config):
        return WordEmbeddingLayer(config, parent=None)


class WordEmbeddingLayer(EmbeddingLayer):
    """Word embeddings with dropout."""

    def __call__(self, tokens_BT, positions_BT, segments_BT, key, examples_BT=None):
        words_BTE = rows(self.word, tokens_BT).astype(self.config.execution.dtype)
        return dropout(words_BTE, self.config.dropout, key)
