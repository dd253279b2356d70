"""BERT (Devlin et al., 2019, section 3): embeddings, and a layer of attention and a feed-forward network.

`bertjax.models.encoder` puts a stack of layers on the embeddings. Other kinds of both are in `bertjax.models.blocks`.
"""

import dataclasses
from typing import ClassVar

import jax
from flax import linen as nn

from bertjax.models import taps
from bertjax.models.attention import SelfAttention
from bertjax.models.blocks.base import Block, Products, check_has_positions, check_heads
from bertjax.models.config import EncoderConfig
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.models.dropout import dropout, split
from bertjax.models.embeddings import EmbeddingLayer, Embeddings, check_ids, rows
from bertjax.models.fixed import FIXED_PATTERNS
from bertjax.models.layers import Activation, Dense, activation, kept, normalization
from bertjax.models.visibility import LayerInputs, Queries, Visibility
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting

POSITIONS = ("learned", "none")


class BertEmbeddingLayer(EmbeddingLayer):
    """Normalized sum of word, position and segment embeddings (Devlin et al., 2019, figure 2), all of width E."""

    config: EncoderConfig

    def setup(self):
        super().setup()
        config, tables = self.config, self.config.embeddings
        init, width = nn.initializers.truncated_normal(config.init_stddev), tables.output_width(config)
        if tables.has_position_table:
            self.position = self.param("position", init, (config.max_positions + tables.position_offset, width))
        if tables.segments:
            self.segment = self.param("segment", init, (tables.segments, width))
        if tables.task_types:
            self.task = self.param("task", init, (tables.task_types, width))
        self.norm = normalization(config)

    def words(self, tokens_BT: jax.Array, examples_BT: jax.Array | None) -> jax.Array:
        """Return what the other embeddings are added to, float32 [B, T, E]."""
        return rows(self.word, tokens_BT)

    def __call__(self, tokens_BT, positions_BT, segments_BT, key, examples_BT=None):
        config, tables = self.config, self.config.embeddings
        summed_BTE = self.words(tokens_BT, examples_BT)
        if tables.has_position_table:
            check_ids("positions_BT", positions_BT, config.max_positions)
            summed_BTE += rows(self.position, positions_BT + tables.position_offset)
        if tables.segments:
            check_ids("segments_BT", segments_BT, tables.segments)
            summed_BTE += rows(self.segment, segments_BT)
        if tables.task_types:
            summed_BTE += self.task[config.execution.task_type]
        return dropout(self.norm(summed_BTE), config.dropout, key)


@dataclasses.dataclass(frozen=True)
class BertEmbeddings(Embeddings):
    """Tables whose rows are added: words, positions, segments and tasks.

    Attributes:
      positions: `learned`, a table, or `none`, for a block that reads the order itself.
      position_offset: unused rows at the start of the position table; RoBERTa has 2 (padding and the symbol before).
      task_types: rows in the task embedding table; one row is added to every token (Sun et al., 2020, ERNIE 2.0, arXiv
        1907.12412, "Model Structure"); 0 for none.
    """

    kind: str = dataclasses.field(init=False, default="bert")
    positions: str = setting("learned", choices=POSITIONS)
    position_offset: int = setting(0, least=0)
    task_types: int = setting(0, least=0)

    @property
    def has_position_table(self):
        return self.positions == "learned"

    def check(self, config):
        super().check(config)
        if self.position_offset and not self.has_position_table:
            raise UserError(
                f"model.embeddings.position_offset={self.position_offset} needs a position table, which positions="
                f"{self.positions} does not have; set it to 0"
            )

    def layer(self, config):
        return BertEmbeddingLayer(config, parent=None)


class BertLayer(nn.Module):
    """One post-norm Transformer layer (Vaswani et al., 2017, section 3.1)."""

    config: EncoderConfig
    attention_kind: ClassVar[type[SelfAttention]] = SelfAttention

    @nn.compact
    def __call__(self, inputs: LayerInputs) -> jax.Array:
        """Return the new hidden states. Positions are those of relatives; BERT's are in the embeddings."""
        hidden_BTD, visibility, key, queries, positions, _ = inputs
        config, rate = self.config, self.config.dropout
        attention_key, output_key, feedforward_key = [None] * 3 if key is None else split(key, 3)
        states = inputs.own
        attention = self.attention_kind(config, name="attention")
        attended = attention(queries, hidden_BTD, hidden_BTD, visibility, attention_key, positions)
        states = normalization(config, "attention_norm")(kept(states + dropout(attended, rate, output_key)))
        output = dropout(feed_forward(self, states, visibility, queries), rate, feedforward_key)
        return normalization(config, "output_norm")(kept(states + output))


def feed_forward(
    layer: nn.Module,
    states: jax.Array,
    visibility: Visibility,
    queries: Queries | None,
    *,
    gated: bool = False,
    activate: Activation | None = None,
) -> jax.Array:
    """Apply a layer's feed-forward network (Vaswani et al., 2017, section 3.3), whose parameters are the layer's own.

    Args:
      layer: the module that calls this function, with a field `config`.
      states: [B, Q, C]; the output is as wide.
      gated: multiply the activations with a second dense layer.
      activate: activation function, such as `jax.nn.silu`; None for `EncoderConfig.activation`.
    """
    config, activate = layer.config, activate or activation(layer.config)
    expanded = activate(Dense(config, config.feedforward, config.block.has_biases, name="intermediate")(states))
    if gated:
        expanded *= Dense(config, config.feedforward, config.block.has_biases, name="gate")(states)
    columns_BQ = None if queries is None else queries.columns_BQ
    expanded = taps.scale_feedforward(layer, expanded, visibility.examples_BT, columns_BQ)
    taps.capture(layer, "feedforward", expanded)
    stddev = config.block.output_stddev(config)
    return Dense(config, states.shape[-1], config.block.has_biases, stddev=stddev, name="output")(expanded)


@dataclasses.dataclass(frozen=True)
class BertBlock(Block):
    """BERT's layer.

    Attributes:
      fixed_heads: patterns from `bertjax.models.fixed` for the first heads in every layer, which then have no queries
        and keys (Raganato et al., 2020, arXiv 2002.10260); the other heads are learned.
    """

    kind: str = dataclasses.field(init=False, default="bert")
    fixed_heads: tuple[str, ...] = ()

    def check(self, config):
        check_heads(config)
        check_has_positions(config)
        if not self.fixed_heads:
            return
        if unknown := [pattern for pattern in self.fixed_heads if pattern not in FIXED_PATTERNS]:
            raise UserError(f"model.block.fixed_heads has {unknown[0]!r}; choose from {', '.join(FIXED_PATTERNS)}")
        if (count := len(self.fixed_heads)) >= config.heads:
            raise UserError(
                f"model.block.fixed_heads has {count} patterns, and model.heads={config.heads} leaves no learned head; "
                f"set model.heads={count + 1} or more, or name fewer patterns"
            )
        if config.direction != BIDIRECTIONAL:
            raise UserError(
                "model.block.fixed_heads attend to all tokens of their example by place, which model.direction="
                f"{config.direction} contradicts; set model.direction={BIDIRECTIONAL}, or model.block.fixed_heads=[]"
            )

    def layer(self, config):
        return BertLayer(config, parent=None)

    def products(self, config):
        return products(config)


def products(config: EncoderConfig, feedforward: int = 2, pairs: int = 2) -> Products:
    """Return the multiply-adds of one Transformer layer's matmuls.

    Per token, a layer has 4 D C in attention; C is the total width of all heads, by default D. Fixed heads have no
    queries and keys, so of the products of pairs only the one with values.

    Args:
      feedforward: matmuls of size D F: up and down, and a gate.
      pairs: matmuls of width C per token pair: queries with keys, probabilities with values, and others of queries.
    """
    learned, context = config.learned_heads * config.head_channels, config.context_width
    attention = config.width * (learned + context)  # queries and outputs, or keys and values
    return Products(
        tokens=attention,
        states=attention + feedforward * config.width * config.feedforward,
        pairs=learned + (pairs - 1) * context,
    )
