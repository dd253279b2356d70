"""Base class of blocks. A block is one layer type of the encoder as data: it makes its Flax module and checks itself.

Settings of one layer type are fields of its block; sizes that all share (`layers`, `width`, ...) are fields of
`EncoderConfig`. Layer types share functions and modules, such as attention, not a class with a branch for each of them.
"""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.config.registry import Kind
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.models.pooling import last_columns
from bertjax.models.taps import CONTEXT_OFFSET, LAYER_MASK, MASKS, NAMES
from bertjax.runtime.errors import UserError


class Products(NamedTuple):
    """Multiply-adds of one layer's matmuls.

    Attributes:
      tokens: per token of a row, in every layer: keys and values, or a recurrence.
      states: per state that the layer returns: queries, output projection and feed-forward network.
      pairs: per state that the layer returns and token that it sees.
      again: per state of a last layer that returns only some: products computed a second time.
    """

    tokens: float
    states: float = 0.0
    pairs: float = 0.0
    again: float = 0.0


@dataclasses.dataclass(frozen=True)
class Block(Kind, abc.ABC):
    """One layer type of the encoder. Methods take the `EncoderConfig` that the block is a field of.

    Defaults fit Transformers that summarize an example by [CLS].

    Attributes:
      captures: per-layer values that can be captured, a subset of `bertjax.models.taps.NAMES`.
      masks: per-layer masks that can be applied, as described in `bertjax.models.taps`.
      fixed_heads: patterns of heads without queries and keys, see `bertjax.models.fixed`.
      position_settings: settings that only change how positions are read; `init_from` and stages may differ in them.
      key_value_heads: number of heads of keys and values if they are fewer than those of queries, else 0.
      global_every: period of layers that see the whole example, see `bertjax.models.blocks.modern`.
      feedforwards: number of feed-forward networks per layer.
      norm: makes a norm of layers or embeddings from the config and `name`; None for layer norms.
      has_biases: whether dense layers and norms below the heads have biases.
      has_attention_biases: whether attention's dense layers have biases.
      has_attention_terms: whether attention adds terms of its own to the products of queries and keys.
      has_final_norm: whether the encoder has a norm after the last layer.
      has_pooler: whether a dense layer pools the state of [CLS] for heads on whole examples (Devlin et al., 2019).
      example_head, token_head: classes of heads that predict labels of examples or tokens, see
        `bertjax.models.other_heads`; None for linear ones.
      masked_lm_head: class of the head that predicts tokens, see `bertjax.models.heads`; None for BERT's.
      streams: class of the streams of states that layers can compute (`bertjax.models.streams`); None for one only.
      has_shared_heads: whether heads have parameters that all layers share, so that each layer has the same heads.
    """

    captures: ClassVar[tuple[str, ...]] = NAMES
    masks: ClassVar[tuple[str, ...]] = (*MASKS, LAYER_MASK, CONTEXT_OFFSET)
    fixed_heads: ClassVar[tuple[str, ...]] = ()
    position_settings: ClassVar[tuple[str, ...]] = ()
    key_value_heads: ClassVar[int] = 0
    global_every: ClassVar[int] = 1
    feedforwards: ClassVar[int] = 1
    norm: ClassVar[Callable[..., nn.Module] | None] = None
    has_biases: ClassVar[bool] = True
    has_attention_biases: ClassVar[bool] = True
    has_attention_terms: ClassVar[bool] = False
    has_final_norm: ClassVar[bool] = False
    has_pooler: ClassVar[bool] = True
    example_head: ClassVar[type[nn.Module] | None] = None
    token_head: ClassVar[type[nn.Module] | None] = None
    masked_lm_head: ClassVar[type[nn.Module] | None] = None
    streams: ClassVar[type | None] = None
    has_shared_heads: ClassVar[bool] = False

    @abc.abstractmethod
    def check(self, config: Any) -> None:
        """Raise UserError if the block's settings are out of range, or conflict with the encoder's."""

    @abc.abstractmethod
    def layer(self, config: Any) -> nn.Module:
        """Return one layer.

        It is called with hidden_BTD, a `Visibility`, a dropout key or None, `Queries` (None for all tokens), the result
        of `positions` and its number (int32 [], from 0). It returns the new hidden states of the queries, [B, Q, D].
        """

    @abc.abstractmethod
    def products(self, config: Any) -> Products:
        """Return the multiply-adds of one layer's matmuls."""

    def tensor_widths(self, config: Any) -> tuple[int, ...]:
        """Return the widths that the mesh axis `tensor` shards."""
        return config.width, config.context_width, config.feedforward

    def layer_width(self, config: Any) -> int:
        """Return the width that attention and feed-forward networks return: by default D."""
        return config.width

    def output_stddev(self, config: Any) -> float:
        """Return the standard deviation that kernels which add to the hidden states start from."""
        return config.init_stddev

    def most_visible(self, layer: int) -> float:
        """Return the number of tokens that a token sees in a layer at most."""
        return math.inf

    def kind_at(self, number: int) -> str:
        """Return what a layer is because of its place, an adjective; layers of other kinds cannot take its place."""
        return ""

    def scaled(self, share: float) -> "Block":
        """Return the block of an encoder that has a share of the width."""
        return self

    def positions(self, config: Any, positions_BT: jax.Array, segments_BT: jax.Array) -> Any:
        """Return what every layer reads about positions; None if the embeddings hold them."""
        return None

    def shared_module(self, config: Any) -> nn.Module | None:
        """Return a module with parameters that all layers read, or None.

        It is called as `positions` is, without the config, and its result takes the place of that of `positions`.
        """
        return None

    def texts(self, examples_BT: jax.Array, segments_BT: jax.Array) -> jax.Array:
        """Return the index of the text that each token is read with (its example), int [B, T]; 0 is padding."""
        return examples_BT

    def summary_columns(self, config: Any, texts_BT: jax.Array, summary_positions_BN: jax.Array) -> jax.Array:
        """Return the columns that an example's summary is computed from, int32 [B, M]; see `summaries`.

        By default M is N: the [CLS] columns, or the last tokens if [CLS] does not see the whole example.

        Args:
          texts_BT: see `texts`.
          summary_positions_BN: int, column of each example's [CLS]. Empty slots may hold any value: their summary has
            weight 0.
        """
        if config.direction != BIDIRECTIONAL:
            return last_columns(texts_BT, summary_positions_BN.shape[1])
        return jnp.maximum(summary_positions_BN, 0)

    def summaries(self, states_BMD: jax.Array, texts_BT: jax.Array) -> jax.Array:
        """Return each example's summary [B, N, C], the pooler's input, from the states at its `summary_columns`."""
        return states_BMD

    def summary_width(self, config: Any) -> int:
        """Return C, the width of a summary."""
        return config.width


def check_heads(config: Any, width: str = "") -> None:
    """Raise UserError if heads do not fill a layer; `width` is the setting that they have to fill: by default D's."""
    # With head_width set, heads need not fill the layer width: the output projection maps any width back.
    if config.layer_width % config.heads and not config.head_width:
        raise UserError(f"{width or f'model.width={config.width}'} is not divisible by model.heads={config.heads}")


def check_no_position_table(config: Any, order: str = "has positions of its own") -> None:
    """Raise UserError if embeddings add positions to words, which this block does not need.

    Args:
      order: how the block reads token order, for the message.
    """
    if config.embeddings.has_position_table:
        raise UserError(f"model.block.kind={config.block.kind} {order}; set model.embeddings.positions=none")


def check_has_positions(config: Any) -> None:
    """Raise UserError if embeddings add no positions to words: this block's attention does not see token order."""
    if not config.embeddings.has_position_table:
        raise UserError(
            f"model.block.kind={config.block.kind} reads token order only from the position table of the embeddings; "
            "set model.embeddings.positions=learned"
        )
