"""Texts longer than a row, as windows that overlap (Devlin et al., 2019; `run_squad.py` of google-research/bert)."""

import numpy as np

# A longer window wins where two give a token as much context, and counts for nothing beside a token of context.
_OF_LENGTH = 0.01


def windows(length: int, room: int, stride: int) -> np.ndarray:
    """Windows over a text, each beginning `stride` tokens (or `room`, if that is less) after the one before.

    Args:
      length: tokens of the text, at least 1.
      room: the most tokens of a window, at least 1.
      stride: at least 1.

    Returns:
      int64 [W, 2]: window w is tokens [start, stop) of the text. No token is in none.
    """
    later = max(0, length - room)
    starts = np.arange(1 + -(-later // min(stride, room))) * min(stride, room)
    return np.stack([starts, np.minimum(starts + room, length)], axis=1)


def most_context(bounds: np.ndarray) -> np.ndarray:
    """For every token of a text, the window in which the lesser of its two sides is longest; int64 [length].

    Args:
      bounds: what `windows` gave; the first of several equal ones is taken.
    """
    tokens = np.arange(bounds[-1, 1])
    before, after = tokens - bounds[:, :1], bounds[:, 1:] - 1 - tokens
    context = np.minimum(before, after) + _OF_LENGTH * (bounds[:, 1:] - bounds[:, :1])
    return np.where((before >= 0) & (after >= 0), context, -1.0).argmax(axis=0)
