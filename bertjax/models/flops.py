"""Analytic FLOP counts: matmuls of encoders and heads."""

from collections.abc import Mapping
from typing import NamedTuple

from flax.core import FrozenDict

from bertjax.models.config import EncoderConfig
from bertjax.models.heads import DetectionHead, MaskedLMHead, PairHead, SpanBoundaryHead, VocabularyHead
from bertjax.models.model import HeadSpec


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
      has_backward: whether gradients are computed; False for a teacher.
    """

    encoder: EncoderConfig
    heads: Mapping[str, float] = FrozenDict()
    read: float | None = None
    queries: bool = False
    has_backward: bool = True


def head_products(config: EncoderConfig, head: HeadSpec) -> int:
    """Return a head's multiply-adds per position or example; 0 for a class that is not in `models.heads`."""
    width, embedded = config.width, config.embedded_width
    if head.kind is MaskedLMHead:
        return (width + config.vocab_size) * config.decoded_width
    if head.kind is VocabularyHead:
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
    """Return the pooler's multiply-adds per example; a siamese LSTM's pooler reads 4 D channels."""
    return (4 if config.pairs == "siamese" else 1) * config.width**2


def encoder_products(config: EncoderConfig, counts: Counts, read: float | None = None, queries: bool = False) -> float:
    """Return the multiply-adds of a forward pass's matmuls.

    Per token, a layer has 4 D C in attention (C is the total width of all heads, by default D) and 2 D F in the
    feed-forward network (3 D F with a gate). Per token pair it has 2 C, or 4 C with relative positions: Transformer-XL
    multiplies each query with 2 T distances. Fixed heads have no queries and keys, so of the pair products only the one
    with values. A local layer attends to a full window, also at example ends. An embedding width E other than D adds E
    D per token, trigrams 3 E D. Between bottlenecks, D is the inner width W, except where attention reads the D
    channels, and each dense layer of a bottleneck has D W. Lookups and elementwise operations do not count.

    An LSTM layer has two directions, each of which multiplies a token's D channels and the previous D / 2 state
    channels with four gate kernels of width D / 2. That is 6 D^2 per token; the last layer also computes all tokens.

    Args:
      counts: amount of work.
      read: positions per prediction, in addition to each example's summary, that the last layer computes; its keys and
        values still cover all tokens. None if it computes all tokens.
      queries: whether every layer computes a second state per prediction (XLNet's query stream). The last layer then
        computes only these, and no summaries.
    """
    width, inner, reads = config.width, config.layer_width, config.bottlenecked
    embedded = (3 if config.words == "trigrams" else config.has_projection) * config.embedded_width * width
    if not config.has_attention:
        return (embedded + 6 * config.layers * width**2) * counts.tokens
    # Matmuls of size D F: up and down, plus the gate in GEGLU.
    products = 3 if config.activation == "geglu" else 2 * config.feedforwards
    context = config.context_width
    learned = config.learned_heads * config.head_channels  # width of queries and keys
    query_input, value_input = (inner if reads in known else width for known in (("queries_keys", "all"), ("all",)))
    outside_keys = query_input * learned + inner * context + products * inner * config.feedforward
    keys = query_input * learned + value_input * context
    shared = 0  # dense layer of a bottleneck before both queries and keys, which all tokens compute once
    if config.inner_width:
        shared = 0 if reads == "none" else width * inner
        outside_keys += width * inner * (1 if reads == "all" else 2)
    each_pair = learned + (3 if config.positions == "relative" else 1) * context
    seen = counts.token_pairs / max(counts.tokens, 1.0)
    added = counts.predictions if queries else 0.0
    total = embedded * counts.tokens
    for layer in range(config.layers):
        states, again = counts.tokens + added, 0.0
        # The last layer computes queries, outputs and feed-forward only where heads read.
        if layer == config.layers - 1 and read is not None:
            again = shared
            states = read * counts.predictions + (0.0 if queries else counts.examples)
        # The average token sees token_pairs / tokens others; a window caps this.
        visible = min(seen, 2 * config.window + 1) if layer % config.global_every else seen
        total += (keys + shared) * counts.tokens + states * (outside_keys + again + each_pair * visible)
    return total
