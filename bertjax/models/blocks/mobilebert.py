"""MobileBERT (Sun et al., 2020, arXiv 2004.02984): bottlenecks, stacked feed-forward networks, trigram embeddings.

Attention and feed-forward networks run at an inner width W, between dense layers from D to W and back, with a residual
over D around both. There is no dropout at the inner width, as in the published code (google-research/mobilebert).
"""

import dataclasses
from typing import cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.attention import SelfAttention
from bertjax.models.bert import BertEmbeddingLayer, BertEmbeddings, feed_forward
from bertjax.models.blocks.base import Block, Products, check_has_positions, check_heads
from bertjax.models.config import EncoderConfig
from bertjax.models.dropout import dropout, split
from bertjax.models.layers import Dense, activation, kept, normalization
from bertjax.models.visibility import LayerInputs, Queries
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting


def trigrams(words_BTE: jax.Array, examples_BT: jax.Array) -> jax.Array:
    """Concatenate the embeddings of the next, the own and the previous token, in this order: [B, T, 3 E].

    Neighbors outside the example are zeros, as at row ends in the published code (google-research/mobilebert,
    modeling.py). There a padded row continues with the embedding of [PAD].

    Args:
      words_BTE: word embeddings.
      examples_BT: int, 1-based index of each token's example; 0 for padding.
    """
    # Rows hold several examples, so a shifted copy must be zeroed where it crosses into another example.
    is_neighbor_BT1 = (examples_BT[:, 1:] == examples_BT[:, :-1])[..., None]
    after_BTE = jnp.where(is_neighbor_BT1, words_BTE[:, 1:], 0.0)
    before_BTE = jnp.where(is_neighbor_BT1, words_BTE[:, :-1], 0.0)
    ends = ((0, 0), (0, 1), (0, 0)), ((0, 0), (1, 0), (0, 0))
    return jnp.concatenate([jnp.pad(after_BTE, ends[0]), words_BTE, jnp.pad(before_BTE, ends[1])], axis=-1)


BOTTLENECKED = NONE, QUERIES_KEYS, ALL = ("none", "queries_keys", "all")
NORMALIZATIONS = LAYER_NORM, NO_NORM = ("layer_norm", "no_norm")


class NoNorm(nn.Module):
    """Per-channel scale and bias that replaces layer norm (section 3.3)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return `x` scaled and shifted, [..., channels]."""
        dtype = jnp.dtype(self.config.execution.dtype)
        scaled = x.astype(dtype) * self.param("scale", nn.initializers.ones, x.shape[-1:]).astype(dtype)
        if self.config.block.has_biases:
            scaled += self.param("bias", nn.initializers.zeros, x.shape[-1:]).astype(dtype)
        return scaled


@dataclasses.dataclass(frozen=True)
class MobileBertBlock(Block):
    """A Transformer layer with bottlenecks. The defaults are MobileBERT's (table 1).

    Attributes:
      inner_width: W. A bottleneck is narrower than D, as in MobileBERT; an inverted bottleneck is wider, as in its
        teacher.
      bottlenecked: inputs that attention reads at the inner width: `none` (queries, keys and values read the D
        channels, as in MobileBERT's teacher), `queries_keys` (through their own dense layer, MobileBERT) or `all`
        (through the residual's dense layer, MobileBERT_TINY).
      feedforwards: number of feed-forward networks per layer, each with its own residual and norm (section 3.2).
      normalization: norms of the layers and embeddings: `no_norm`, a per-channel scale and bias (section 3.3), or
        `layer_norm`. Head norms are always layer norms.
    """

    kind: str = dataclasses.field(init=False, default="mobilebert")
    inner_width: int = setting(128, least=1)
    bottlenecked: str = setting(QUERIES_KEYS, choices=BOTTLENECKED)
    feedforwards: int = setting(4, least=1)
    normalization: str = setting(NO_NORM, choices=NORMALIZATIONS)

    @property
    def norm(self):
        return NoNorm if self.normalization == NO_NORM else None

    def check(self, config):
        if config.sharing != "none":
            raise UserError(
                f"model.block.kind=mobilebert is not defined for layers that share parameters (model.sharing="
                f"{config.sharing}); set model.sharing=none"
            )
        check_heads(config, f"model.block.inner_width={self.inner_width}")
        check_has_positions(config)

    def layer(self, config):
        return MobileBertLayer(config, parent=None)

    def layer_width(self, config):
        return self.inner_width

    def scaled(self, share):
        return dataclasses.replace(self, inner_width=max(1, round(self.inner_width * share)))

    def products(self, config):
        width, inner, reads = config.width, self.inner_width, self.bottlenecked
        query_input, value_input = (inner if reads in known else width for known in ((QUERIES_KEYS, ALL), (ALL,)))
        # One dense layer leads into the residual, one out. All tokens pass the one before queries and keys.
        shared = 0 if reads == NONE else width * inner
        context = config.context_width
        feedforward = 2 * self.feedforwards * inner * config.feedforward
        return Products(
            tokens=(query_input + value_input) * context + shared,
            states=(query_input + inner) * context + feedforward + width * inner * (1 if reads == ALL else 2),
            pairs=2 * context,
            again=shared,
        )


class MobileBertLayer(nn.Module):
    """One layer: into the bottleneck, attention, feed-forward networks, out of the bottleneck."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, inputs: LayerInputs) -> jax.Array:
        """Return the new hidden states; positions are in the embeddings."""
        hidden_BTD, visibility, key, queries, positions, _ = inputs
        config, block = self.config, self.config.block
        attention_key, _, output_key = [None] * 3 if key is None else split(key, 3)
        bottleneck = Bottleneck(config, name="bottleneck")
        sums, queries, keys_BTD, values_BTD = bottleneck.enter(hidden_BTD, queries)
        attention = SelfAttention(config, name="attention")
        attended = attention(queries, keys_BTD, values_BTD, visibility, attention_key, positions)
        states = normalization(config, "attention_norm")(kept(sums + attended))
        for number in range(1, block.feedforwards):
            states = FeedForward(config, name=f"feedforward_{number}")(states)
        output = states + feed_forward(self, states, visibility, queries)
        return bottleneck.leave(normalization(config, "output_norm")(kept(output)), inputs.own, output_key)


class Bottleneck(nn.Module):
    """Dense layers from D to the inner width W and back, each with a norm (section 3.1)."""

    config: EncoderConfig

    def setup(self):
        config, inner, biases = self.config, self.config.layer_width, self.config.block.has_biases
        self.reads = cast(MobileBertBlock, config.block).bottlenecked
        self.input, self.input_norm = Dense(config, inner, biases), normalization(config)
        if self.reads == QUERIES_KEYS:
            self.attention, self.attention_norm = Dense(config, inner, biases), normalization(config)
        self.output, self.output_norm = Dense(config, config.width, biases), normalization(config)

    def enter(
        self, hidden_BTD: jax.Array, queries: Queries | None
    ) -> tuple[jax.Array, Queries | None, jax.Array, jax.Array]:
        """Return (residual [B, Q, W], queries, keys, values) for the layer.

        Args:
          hidden_BTD: states of all tokens.
          queries: states that attend; None for all tokens (the queries are then the keys' states).
        """

        def narrow(x: jax.Array) -> jax.Array:
            return self.input_norm(self.input(x))

        def attend(x: jax.Array) -> jax.Array:
            return self.attention_norm(self.attention(x))

        own = None if queries is None else queries.hidden_BQD
        if self.reads == ALL:
            narrow_BTW = narrow(hidden_BTD)
            sums = narrow_BTW if own is None else narrow(own)
            return sums, queries and queries._replace(hidden_BQD=sums), narrow_BTW, narrow_BTW
        # MobileBERT: queries and keys share one bottleneck, while values read all D channels (table 1).
        sums = narrow(hidden_BTD if own is None else own)
        if self.reads == QUERIES_KEYS:
            attending = queries and queries._replace(hidden_BQD=attend(queries.hidden_BQD))
            return sums, attending, attend(hidden_BTD), hidden_BTD
        return sums, queries, hidden_BTD, hidden_BTD

    def leave(self, states: jax.Array, own: jax.Array, key: jax.Array | None) -> jax.Array:
        """Map states [B, Q, W] back to D, add them to the layer's input and normalize."""
        return self.output_norm(own + dropout(self.output(states), self.config.dropout, key))


@dataclasses.dataclass(frozen=True)
class MobileBertEmbeddings(BertEmbeddings):
    """Word embeddings of a token and both neighbors, mapped to D (section 3.4); the other tables are D wide.

    The MLM head multiplies all D channels: `word_rest` holds those that the word embeddings lack.
    """

    kind: str = dataclasses.field(init=False, default="mobilebert")
    width: int = setting(128, least=0)

    def check(self, config):
        super().check(config)
        # The MLM head extends each word embedding to D with `word_rest`, so E cannot exceed D.
        if config.embedded_width > config.width:
            raise UserError(
                f"model.embeddings.kind=mobilebert needs embeddings of at most model.width={config.width}; lower "
                f"model.embeddings.width={self.width}"
            )

    def layer(self, config):
        return MobileBertEmbeddingLayer(config, parent=None)

    def output_width(self, config):
        return config.width

    def products(self, config):
        return 3 * config.embedded_width * config.width


class MobileBertEmbeddingLayer(BertEmbeddingLayer):
    """BERT's sum on trigrams of words."""

    def setup(self):
        super().setup()
        self.projection = Dense(self.config, self.config.width, self.config.block.has_biases)

    def words(self, tokens_BT, examples_BT):
        return self.projection(trigrams(super().words(tokens_BT, examples_BT), examples_BT)).astype(jnp.float32)


class FeedForward(nn.Module):
    """An additional feed-forward network with residual and norm, before the last one in a layer (section 3.2)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, states: jax.Array) -> jax.Array:
        """Return the new states, as wide as `states`."""
        config, biases = self.config, self.config.block.has_biases
        expanded = activation(config)(Dense(config, config.feedforward, biases, name="intermediate")(states))
        output = Dense(config, states.shape[-1], biases, name="output")(expanded)
        return normalization(config, "output_norm")(states + output)
