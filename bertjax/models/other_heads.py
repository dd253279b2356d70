"""Heads beside BERT's: of labels of examples or tokens, of replaced tokens, and others that predict tokens."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.config import EncoderConfig
from bertjax.models.heads import transformed, vocabulary_logits
from bertjax.models.layers import Dense, activation, layer_norm
from bertjax.models.model import HeadSpec
from bertjax.runtime.errors import UserError, shorten

# The last layer of a head that has several.
_LAST = "classifier"


def label_head(config: EncoderConfig, outputs: int, on_tokens: bool = False) -> HeadSpec:
    """Return a head that predicts labels of examples or tokens: linear, unless the encoder's block has another.

    It computes in float32. Answers are ranked by logits that differ only slightly, and in bfloat16 numbers near 3 are
    1/64 apart.
    """
    if (kind := config.block.token_head if on_tokens else config.block.example_head) is not None:
        return HeadSpec(kind, {"features": outputs})
    return HeadSpec(Dense, {"features": outputs, "dtype": "float32"})


def with_outputs(head: Mapping[str, Any], places: Sequence[int] | None) -> dict[str, Any]:
    """Return the parameters of a head with its outputs in another order; layers before the last have no outputs.

    Args:
      head: parameters of one layer, or of several layers by name.
      places: for each output, its place in `head`; None leaves the last layer out.

    Raises:
      UserError: none of several layers is known as the last one.
    """
    if _LAST in head:
        return {**head, _LAST: with_outputs(head[_LAST], places)}
    if places is not None and any(isinstance(leaf, Mapping) for leaf in head.values()):
        raise UserError(f"outputs cannot be matched with classes: call the last of {shorten(list(head))} {_LAST!r}")
    return {} if places is None else {name: leaf[..., list(places)] for name, leaf in head.items()}


class LabelHead(nn.Module):
    """Predict labels from states by two layers (Warner et al., 2024, ModernBERT).

    The first layer is that of `MaskedLMHead`: dense, activation, norm. Everything is computed in float32.

    Attributes:
      features: number of outputs.
    """

    config: EncoderConfig
    features: int

    @nn.compact
    def __call__(self, states: jax.Array) -> jax.Array:
        """Map states [..., D] to float32 logits [..., features]."""
        execution = dataclasses.replace(self.config.execution, dtype="float32")
        config = dataclasses.replace(self.config, execution=execution)
        hidden = transformed(config, config.width, states)
        return Dense(config, self.features, stddev=config.width**-0.5, name=_LAST)(hidden)


class HiddenLayerHead(nn.Module):
    """Predict labels from states by two dense layers with biases, in float32 (Boizard et al., 2025, EuroBERT).

    Attributes:
      features: number of outputs.
    """

    config: EncoderConfig
    features: int

    @nn.compact
    def __call__(self, states: jax.Array) -> jax.Array:
        """Map states [..., D] to float32 logits [..., features]."""
        transform = Dense(self.config, self.config.width, dtype="float32", name="transform")
        hidden = activation(self.config)(transform(states))
        return Dense(self.config, self.features, dtype="float32", name=_LAST)(hidden)


class DetectionHead(nn.Module):
    """Predict for each token whether it was replaced (Clark et al., 2020, section 2)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, hidden_BTD: jax.Array) -> jax.Array:
        """Return float32 logits_BT."""
        # This hidden layer follows the published code (google-research/electra).
        transform = Dense(self.config, self.config.width, self.config.block.has_biases, name="transform")
        transformed_BTD = activation(self.config)(transform(hidden_BTD))
        return Dense(self.config, 1, name=_LAST)(transformed_BTD)[..., 0].astype(jnp.float32)


class SpanBoundaryHead(nn.Module):
    """Predict each masked token from the two tokens around its span and its place in the span.

    Two layers with GELU and layer norm read the boundary states and the place embedding, followed by a product with the
    word embeddings (Joshi et al., 2020, section 3.2).

    Attributes:
      longest: number of places with an embedding.
      place_width: width of the place embeddings.
    """

    config: EncoderConfig
    longest: int
    place_width: int

    @nn.compact
    def __call__(
        self, left_BKD: jax.Array, right_BKD: jax.Array, places_BK: jax.Array, word_VE: jax.Array
    ) -> jax.Array:
        """Return float32 logits_BKV over the padded vocabulary.

        Args:
          left_BKD, right_BKD: hidden states of the last token before the span and the first token after it.
          places_BK: int, in [0, longest), 0 for the first token in the span.
        """
        config = self.config
        init = nn.initializers.truncated_normal(config.init_stddev)
        place = self.param("place", init, (self.longest, self.place_width))
        word_bias_V = self.param("word_bias", nn.initializers.zeros, (config.padded_vocab_size,))
        hidden = jnp.concatenate([left_BKD, right_BKD, place[places_BK].astype(left_BKD.dtype)], axis=-1)
        for name, width in (("first", config.width), ("second", config.embedded_width)):
            hidden = activation(config)(Dense(config, width, config.block.has_biases, name=name)(hidden))
            hidden = layer_norm(config, f"{name}_norm")(hidden)
        return vocabulary_logits(config, hidden, word_VE, word_bias_V)


class VocabularyHead(nn.Module):
    """Multiply with the word embeddings, without a transform (Yang et al., 2019, section 2.3)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, hidden_BKD: jax.Array, word_VE: jax.Array) -> jax.Array:
        """Return float32 logits_BKV over the padded vocabulary; padding gets the lowest float."""
        word_bias_V = self.param("word_bias", nn.initializers.zeros, (self.config.padded_vocab_size,))
        return vocabulary_logits(self.config, hidden_BKD, word_VE, word_bias_V)


class DecoderHead(nn.Module):
    """Multiply with a table of its own instead of the word embeddings, without a transform.

    This is the head of Llama (Touvron et al., 2023, arXiv 2302.13971).

    Attributes:
      has_biases: whether each word has a bias, as in NeoBERT.
    """

    config: EncoderConfig
    has_biases: bool = False

    @nn.compact
    def __call__(self, hidden_BKD: jax.Array, word_VE: jax.Array) -> jax.Array:
        """Return float32 logits_BKV over the padded vocabulary; padding gets the lowest float.

        Args:
          hidden_BKD: states at the predicted positions.
          word_VE: the word embeddings, which other heads read.
        """
        init = nn.initializers.truncated_normal(self.config.init_stddev)
        own_VD = self.param("word", init, (self.config.padded_vocab_size, self.config.width))
        if not self.has_biases:
            return vocabulary_logits(self.config, hidden_BKD, own_VD, jnp.zeros(()))  # a zero for each bias
        word_bias_V = self.param("word_bias", nn.initializers.zeros, (self.config.padded_vocab_size,))
        return vocabulary_logits(self.config, hidden_BKD, own_VD, word_bias_V)


class BiasedDecoderHead(DecoderHead):
    """A decoder with a bias for each word (Le Breton et al., 2025, NeoBERT)."""

    has_biases: bool = True
