"""Floating-point operations of training, by formula."""

from bertjax.models.config import EncoderConfig


def training_flops(config: EncoderConfig, tokens: float, token_pairs: float, predictions: float) -> float:
    """Useful operations, forward and backward: padding and what is computed only to be thrown away do not count.

    Per layer and token 4 D^2 + 2 D F multiply-adds in kernels and 2 D for each token attended to; per prediction the
    transform and the product with the vocabulary (D^2 + V D). A multiply-add is two operations, and the backward pass
    costs twice the forward (Kaplan et al., 2020, arXiv 2001.08361, section 2.1).

    Args:
      config: the encoder.
      tokens: real tokens.
      token_pairs: sum over examples of length squared.
      predictions: positions whose token is predicted.
    """
    width = config.width
    kernels = config.layers * (4 * width**2 + 2 * width * config.feedforward) * tokens
    attention = config.layers * 2 * width * token_pairs
    head = (width**2 + config.vocab_size * width) * predictions
    return 6.0 * (kernels + attention + head)
