"""Floating-point operations of training an encoder, by formula."""

from bertjax.models.config import EncoderConfig


def training_flops(config: EncoderConfig, tokens: float, token_pairs: float, predictions: float) -> float:
    """Return the useful FLOPs, forward and backward: neither padding nor discarded results count.

    Multiply-adds per layer and token: 4 D^2 + 2 D F in kernels (3 D F with a gate), and 2 D for each token attended to
    (3 D with relative positions). A local layer attends to as many tokens as its window has, also at the ends of an
    example. Per token: E D if the embeddings are projected to D. Per prediction: the transform and the product with the
    vocabulary (D E + V E). A multiply-add is two operations, and the backward pass costs twice the forward pass (Kaplan
    et al., 2020, arXiv 2001.08361, section 2.1).

    Args:
      tokens: number of real tokens.
      token_pairs: sum over examples of length squared.
      predictions: number of positions whose token is predicted.
    """
    width, embedded = config.width, config.embedded_width
    products = 3 if config.activation == "geglu" else 2
    kernels = config.layers * (4 * width**2 + products * width * config.feedforward) * tokens
    local_pairs = min(token_pairs, (2 * config.window + 1) * tokens)
    attended = (config.layers - config.local_layers) * token_pairs + config.local_layers * local_pairs
    attention = (3 if config.positions == "relative" else 2) * width * attended
    projection = embedded * width * tokens if embedded != width else 0
    head = (width + config.vocab_size) * embedded * predictions
    return 6.0 * (kernels + attention + projection + head)
