"""Floating-point operations of training, by formula."""

from bertjax.models.config import EncoderConfig


def training_flops(config: EncoderConfig, tokens: float, token_pairs: float, predictions: float) -> float:
    """Useful operations, forward and backward: padding and what is computed only to be thrown away do not count.

    Per layer and token 4 D^2 + 2 D F multiply-adds in kernels (3 D F with a gate) and 2 D for each token attended to
    (3 D where positions are relative, once more for the distance), in a local layer as many as its window holds, as if
    the ends of an example filled it; per token E D where embeddings of another width are taken to D; per prediction the
    transform and the product with the vocabulary (D E + V E). A multiply-add is two operations, and the backward pass
    costs twice the forward (Kaplan et al., 2020, arXiv 2001.08361, section 2.1).

    Args:
      config: the encoder.
      tokens: real tokens.
      token_pairs: sum over examples of length squared.
      predictions: positions whose token is predicted.
    """
    width, embedded = config.width, config.embedded_width
    products = 3 if config.activation == "geglu" else 2
    kernels = config.layers * (4 * width**2 + products * width * config.feedforward) * tokens
    local_pairs = min(token_pairs, (2 * config.window + 1) * tokens)
    seen = (config.layers - config.local_layers) * token_pairs + config.local_layers * local_pairs
    attention = (3 if config.positions == "relative" else 2) * width * seen
    projection = embedded * width * tokens if embedded != width else 0
    head = (width + config.vocab_size) * embedded * predictions
    return 6.0 * (kernels + attention + projection + head)
