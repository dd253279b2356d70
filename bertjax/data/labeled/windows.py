"""Overlapping windows over texts longer than a row (as in `run_squad.py` of google-research/bert)."""

import numpy as np

# Tie break: of two windows with equal context, the longer one wins. Its weight is far below one token of context.
_LENGTH_WEIGHT = 0.01


def windows(length: int, room: int, stride: int) -> np.ndarray:
    """Cut a text into windows that start min(`stride`, `room`) tokens apart.

    Args:
      length: number of tokens in the text, at least 1.
      room: maximum window length, at least 1.
      stride: at least 1.

    Returns:
      int64 [W, 2]: tokens [start, stop) per window. Every token is in at least one window.
    """
    # A stride above `room` would leave gaps between windows.
    later = max(0, length - room)
    starts = np.arange(1 + -(-later // min(stride, room))) * min(stride, room)
    return np.stack([starts, np.minimum(starts + room, length)], axis=1)


def most_context(bounds: np.ndarray) -> np.ndarray:
    """Return for each token the window that gives it the most context on its shorter side; int64 [length].

    Args:
      bounds: the result of `windows`; ties go to the first window.
    """
    tokens = np.arange(bounds[-1, 1])
    before, after = tokens - bounds[:, :1], bounds[:, 1:] - 1 - tokens
    context = np.minimum(before, after) + _LENGTH_WEIGHT * (bounds[:, 1:] - bounds[:, :1])
    return np.where((before >= 0) & (after >= 0), context, -1.0).argmax(axis=0)
