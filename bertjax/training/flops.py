"""Floating-point operations of training, by formula."""

from bertjax.models.config import EncoderConfig


def training_flops(config: EncoderConfig, tokens: float, token_pairs: float, predictions: float) -> float:
    """Useful operations, forward and backward: padding and what is computed only to be thrown away do not count.

    Per layer and token 4 D^2 + 2 D F multiply-adds in kernels and 2 D for each token attended to; per token E D where
    embeddings of another width are taken to D; per prediction the transform and the product with the vocabulary
    (D E + V E). A multiply-add is two operations, and the backward pass costs twice the forward (Kaplan et al., 2020,
    arXiv 2001.08361, section 2.1).

    Args:
      config: the encoder.
      tokens: real tokens.
      token_pairs: sum over examples of length squared.
      predictions: positions whose token is predicted.
    """
    width, embedded = config.width, config.embedded_width
    kernels = config.layers * (4 * width**2 + 2 * width * config.feedforward) * tokens
    attention = config.layers * 2 * width * token_pairs
    projection = embedded * width * tokens if embedded != width else 0
    head = (width + config.vocab_size) * embedded * predictions
    return 6.0 * (kernels + attention + projection + head)
