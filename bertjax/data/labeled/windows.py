"""Overlapping windows of texts that are longer than a row (`run_squad.py` of google-research/bert)."""

import numpy as np

# If two windows give a token the same context, the longer one wins; the weight is far below one token of context.
_LENGTH_WEIGHT = 0.01


def windows(length: int, room: int, stride: int) -> np.ndarray:
    """Return windows over a text, each starting `stride` tokens (or `room`, if smaller) after the one before.

    Args:
      length: tokens of the text, at least 1.
      room: the most tokens of a window, at least 1.
      stride: at least 1.

    Returns:
      int64 [W, 2]: window w is tokens [start, stop) of the text. Every token is in at least one window.
    """
    later = max(0, length - room)
    starts = np.arange(1 + -(-later // min(stride, room))) * min(stride, room)
    return np.stack([starts, np.minimum(starts + room, length)], axis=1)


def most_context(bounds: np.ndarray) -> np.ndarray:
    """Return the window of each token whose shorter side around the token is longest; int64 [length].

    Args:
      bounds: the result of `windows`; of equal windows the first is taken.
    """
    tokens = np.arange(bounds[-1, 1])
    before, after = tokens - bounds[:, :1], bounds[:, 1:] - 1 - tokens
    context = np.minimum(before, after) + _LENGTH_WEIGHT * (bounds[:, 1:] - bounds[:, :1])
    return np.where((before >= 0) & (after >= 0), context, -1.0).argmax(axis=0)
