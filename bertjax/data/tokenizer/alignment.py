"""Character alignment: map tokens back to the original text, before normalization."""

import unicodedata

import numpy as np


def stretches(text: str) -> tuple[list[str], list[str]]:
    """Split a text into the shortest parts that NFC normalizes independently.

    A base character and everything that composes with it (accents, Hangul vowels) share a part.

    Returns:
      The parts, and the normalized parts.
    """
    # Nearly all text is NFC already, and each character is then its own part.
    if unicodedata.is_normalized("NFC", text):
        return list(text), list(text)
    parts, composed = [], []
    for character in text:
        alone = unicodedata.normalize("NFC", character)
        together = unicodedata.normalize("NFC", parts[-1] + character) if parts else alone
        # A character that changes how its predecessor normalizes, or may be reordered with it, joins its part.
        if parts and (unicodedata.combining(character) or together != composed[-1] + alone):
            parts[-1], composed[-1] = parts[-1] + character, together
        else:
            parts.append(character)
            composed.append(alone)
    return parts, composed


def whole(spans: np.ndarray, parts: list[str], seen: list[str]) -> np.ndarray:
    """Convert spans in the normalized text to spans in the original text, extended to whole parts.

    Args:
      spans: spans in `"".join(seen)`, int64 [n, 2].
      parts: the original text's parts, see `stretches`.
      seen: the same parts as the tokenizer library received them.
    """
    bounds = np.cumsum([0, *map(len, parts)])
    lengths = [len(part) for part in seen]
    starts, stops = np.repeat(bounds[:-1], lengths), np.repeat(bounds[1:], lengths)
    starts_at = np.append(starts, bounds[-1])[spans[:, 0]]
    ends_at = np.where(spans[:, 1] > spans[:, 0], np.append(0, stops)[spans[:, 1]], starts_at)
    return np.stack([starts_at, ends_at], axis=1)


def trimmed(spans: np.ndarray, text: str) -> np.ndarray:
    """Strip white space from both ends of each span; an all-space span becomes empty, at its end."""
    for row, (start, stop) in enumerate(spans.tolist()):
        while start < stop and text[start].isspace():
            start += 1
        while start < stop and text[stop - 1].isspace():
            stop -= 1
        spans[row] = start, stop
    return spans
