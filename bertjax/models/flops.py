"""Analytic FLOP counts: matmuls of encoders and heads."""

from collections.abc import Mapping
from typing import NamedTuple

from flax.core import FrozenDict

from bertjax.models.config import EncoderConfig
from bertjax.models.heads import MaskedLMHead, PairHead
from bertjax.models.layers import Dense
from bertjax.models.model import HeadSpec
from bertjax.models.other_heads import (
    BiasedDecoderHead,
    DecoderHead,
    DetectionHead,
    SpanBoundaryHead,
    VocabularyHead,
    label_head,
)


class Counts(NamedTuple):
    """Amount of work in a step.

    Attributes:
      tokens: number of tokens.
      token_pairs: sum of squared example lengths: tokens attend only within their own example, however many share a
        row.
      predictions: number of predicted positions, counting all places in features named `..._weights_BK`.
      examples: number of examples.
    """

    tokens: float
    token_pairs: float
    predictions: float = 0.0
    examples: float = 0.0


class FlopsPart(NamedTuple):
    """FLOPs of one encoder, run over every token, and of the heads on its hidden states.

    Attributes:
      encoder: encoder architecture.
      heads: {unit: multiply-adds per unit, summed over heads}; a unit is `tokens`, `predictions` or `examples`.
      read: positions per prediction that the last layer computes; None if it computes all tokens.
      queries: whether every layer computes a second state per prediction, as in XLNet.
      answers: whether predicted tokens are read beside the symbols in their place, as in MPNet.
      has_backward: whether gradients are computed; False for a teacher.
    """

    encoder: EncoderConfig
    heads: Mapping[str, float] = FrozenDict()
    read: float | None = None
    queries: bool = False
    answers: bool = False
    has_backward: bool = True


def head_products(config: EncoderConfig, head: HeadSpec) -> int:
    """Return a head's multiply-adds per position or example; 0 for a class that is not in `models.heads`."""
    width, embedded = config.width, config.embedded_width
    if head.kind is MaskedLMHead:
        return (width + config.vocab_size) * config.embeddings.output_width(config)
    if head.kind in (VocabularyHead, DecoderHead, BiasedDecoderHead):
        return config.vocab_size * width
    if head.kind is SpanBoundaryHead:
        boundary = (2 * width + head.options["place_width"]) * width
        return boundary + (width + config.vocab_size) * embedded
    if head.kind is DetectionHead:
        return width * (width + 1)
    if head.kind is PairHead:  # with the pooler before it
        return pooler_products(config) + width * head.options.get("classes", PairHead.classes)
    return 0


def pooler_products(config: EncoderConfig) -> int:
    """Return the pooler's multiply-adds per example; 0 if the block has none."""
    return config.block.summary_width(config) * config.width if config.block.has_pooler else 0


def label_products(config: EncoderConfig, outputs: int, on_tokens: bool = False) -> int:
    """Return the multiply-adds, per token or example, of a head that predicts labels, without the pooler."""
    is_linear = label_head(config, outputs, on_tokens).kind is Dense
    return config.width * (outputs if is_linear else config.width + outputs)


def encoder_products(
    config: EncoderConfig, counts: Counts, read: float | None = None, queries: bool = False, answers: bool = False
) -> float:
    """Return the multiply-adds of a forward pass's matmuls.

    Embeddings count their own and the block those of a layer. Lookups and elementwise operations do not count.

    Args:
      counts: amount of work.
      read: positions per prediction, in addition to each example's summary, that the last layer computes; its keys and
        values still cover all tokens. None if it computes all tokens.
      queries: whether every layer computes a second state per prediction (XLNet's query stream). The last layer then
        computes only these, and no summaries.
      answers: whether each prediction adds a token that all layers read (MPNet's predicted tokens).
    """
    products = config.block.products(config)
    seen = counts.token_pairs / max(counts.tokens, 1.0)
    added = counts.predictions if queries else 0.0
    tokens = counts.tokens
    if answers:
        tokens += counts.predictions
        seen *= tokens / max(counts.tokens, 1.0)
    total = config.embeddings.products(config) * tokens
    for layer in range(config.layers):
        states, again = tokens + added, 0.0
        # The last layer computes queries, outputs and feed-forward only where heads read.
        if layer == config.layers - 1 and read is not None:
            again = products.again
            states = read * counts.predictions + (0.0 if queries else counts.examples)
        # The average token sees token_pairs / tokens others; a window caps this.
        visible = min(seen, config.block.most_visible(layer))
        total += products.tokens * tokens + states * (products.states + again + products.pairs * visible)
    return total
