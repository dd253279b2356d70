"""The matrix products of encoders and heads, by formula."""

from collections.abc import Mapping
from typing import NamedTuple

from flax.core import FrozenDict

from bertjax.models.config import EncoderConfig
from bertjax.models.heads import DetectionHead, MaskedLMHead, PairHead, SpanBoundaryHead, VocabularyHead
from bertjax.models.model import HeadSpec


class Counts(NamedTuple):
    """What a step computes on.

    Attributes:
      tokens: number of tokens.
      token_pairs: sum over examples of length squared: a token attends to its own example only, however many others
        share its row.
      predictions: number of predicted positions, all places of the features whose names end in `_weights_BK`.
      examples: number of examples.
    """

    tokens: float
    token_pairs: float
    predictions: float = 0.0
    examples: float = 0.0


class FlopsPart(NamedTuple):
    """A part of a step's FLOPs: an encoder that runs over every token, and the heads on its hidden states.

    Attributes:
      encoder: its architecture.
      heads: {unit: multiply-adds of all heads for each of them}; a unit is `tokens`, `predictions` or `examples`.
      read: number of positions for each prediction that its last layer computes; None if it computes all tokens.
      queries: whether every layer computes a second state for each prediction, as XLNet's do.
      has_backward: whether gradients are computed; a teacher has none.
    """

    encoder: EncoderConfig
    heads: Mapping[str, float] = FrozenDict()
    read: float | None = None
    queries: bool = False
    has_backward: bool = True


def head_products(config: EncoderConfig, head: HeadSpec) -> int:
    """Return the multiply-adds of a head for one position or example; 0 for a class that is not in `models.heads`."""
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
        return width * (width + head.options.get("classes", PairHead.classes))
    return 0


def encoder_products(config: EncoderConfig, counts: Counts, read: float | None = None, queries: bool = False) -> float:
    """Return the multiply-adds of the matrix products of a forward pass.

    For each token, a layer has 4 D C in attention, C the width of the context of all heads (D by default), and 2 D F in
    the feed-forward part (3 D F with a gate). For each pair of tokens it has 2 C, or 4 C with relative positions:
    Transformer-XL's products with distances have one for each of 2 T distances. Fixed heads have no queries and keys,
    and of the products of pairs only those with values. A local layer attends to as many tokens as its window has, also
    at the ends of an example. Embeddings of another width E add E D for each token, and trigrams 3 E D. Between
    bottlenecks D is the inner width W, but for what attention reads of the D channels, and each dense layer of a
    bottleneck has D W. Lookups and elementwise operations do not count.

    In a layer of an LSTM, each of two directions multiplies the D channels of a token and its last state of D / 2 with
    the kernels of four gates of D / 2: 6 D^2 for each token, and the last layer computes all tokens too.

    Args:
      counts: what it computes on.
      read: number of positions for each prediction, in addition to the summary of each example, that the last layer
        computes; keys and values are still those of all tokens. None if it computes all tokens.
      queries: whether every layer computes a second state for each prediction (XLNet's query stream). The last layer
        then computes only these, and no summaries.
    """
    width, inner, reads = config.width, config.layer_width, config.bottlenecked
    embedded = (3 if config.words == "trigrams" else config.has_projection) * config.embedded_width * width
    if not config.has_attention:
        return (embedded + 6 * config.layers * width**2) * counts.tokens
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
        if layer == config.layers - 1 and read is not None:
            again = shared
            states = read * counts.predictions + (0.0 if queries else counts.examples)
        visible = min(seen, 2 * config.window + 1) if layer % config.global_every else seen
        total += (keys + shared) * counts.tokens + states * (outside_keys + again + each_pair * visible)
    return total
