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
    parts, composed, start = [], [], 0
    for index, character in enumerate(text + "\n"):  # the line end closes the last part
        # A combining character joins its predecessor. They are not normalized one by one: a text may have thousands.
        if index == start or unicodedata.combining(character):
            continue
        part, alone = (unicodedata.normalize("NFC", each) for each in (text[start:index], character))
        # So does one that changes how its predecessor normalizes, such as the vowel of a Hangul syllable.
        if index < len(text) and unicodedata.normalize("NFC", text[start : index + 1]) != part + alone:
            continue
        parts.append(text[start:index])
        composed.append(part)
        start = index
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
