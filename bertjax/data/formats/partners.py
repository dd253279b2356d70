"""Runs of consecutive sentences, and the sentences from elsewhere that a pair format puts beside one of them."""

import dataclasses
from collections.abc import Callable

import numpy as np

from bertjax.data.formats.trimming import Range

# (name of a stream, int64 [S] sentences) -> float64 [S] in [0, 1), a function of the stream, the sentence and the seed.
Share = Callable[[str, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Chunks:
    """The chunk that starts with each of S consecutive sentences: two runs, first..middle-1 and middle..stop-1.

    Attributes:
      first, middle, stop: int64 [S], sentences; middle = stop if the chunk is a single sentence.
      partner_tokens: int64 [S], tokens, at least 1, that a run from elsewhere must reach if it replaces the second run.
    """

    first: np.ndarray
    middle: np.ndarray
    stop: np.ndarray
    partner_tokens: np.ndarray

    def __getitem__(self, indices: np.ndarray) -> "Chunks":
        return Chunks(self.first[indices], self.middle[indices], self.stop[indices], self.partner_tokens[indices])


def below(share: np.ndarray, size: int | np.ndarray) -> np.ndarray:
    """Return a number in [0, 1) as an integer in range(size)."""
    return (share * size).astype(np.int64)


def apart(chunks: Chunks, begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of sentences before and after a chunk's first run in its document, except adjacent ones."""
    return np.maximum(chunks.first - 1 - begins, 0), np.maximum(ends - chunks.middle - 1, 0)


def in_another(bounds: np.ndarray, documents: np.ndarray, chunks: Chunks, owner: np.ndarray, share: Share) -> Range:
    """Return for each chunk a sentence of another document, and the end of that document; int64 [C]."""
    begins, ends = _another(documents, chunks, owner, share)
    return begins + below(share("start", chunks.first), ends - begins), ends


def in_another_with_room(
    bounds: np.ndarray, documents: np.ndarray, chunks: Chunks, owner: np.ndarray, share: Share
) -> Range:
    """Return the same for sentences that `partner_tokens` follow in their document, if it has as many; int64 [C]."""
    begins, ends = _another(documents, chunks, owner, share)
    too_late = _reach(bounds, begins, ends, bounds[ends] - bounds[begins] - chunks.partner_tokens + 1)
    return begins + below(share("start", chunks.first), too_late - begins), ends


def _another(documents: np.ndarray, chunks: Chunks, owner: np.ndarray, share: Share) -> Range:
    """Return the first sentence and the end of another document for each chunk; int64 [C]."""
    other = below(share("document", chunks.first), len(documents) - 2)
    other += other >= owner
    return documents[other], documents[other + 1]


def in_the_same(bounds: np.ndarray, documents: np.ndarray, chunks: Chunks, owner: np.ndarray, share: Share) -> Range:
    """Return for each chunk a sentence of its document not adjacent to its first run, and where a run must end; [C]."""
    begins, ends = documents[owner], documents[owner + 1]
    before, after = apart(chunks, begins, ends)
    drawn = below(share("start", chunks.first), before + after)
    is_before = drawn < before
    first = np.where(is_before, begins + drawn, chunks.middle + 1 + drawn - before)
    return first, np.where(is_before, chunks.first - 1, ends)


def partners(bounds, documents, chunks: Chunks, owner: np.ndarray, place, share: Share) -> Range:
    """Return for each chunk a run of sentences from elsewhere with at least `partner_tokens`, if it has as many.

    Args:
      bounds, documents: int64, as `Split.sentences` and `Split.documents`.
      chunks: the C chunks.
      owner: int64 [C], the document of each.
      place: one of `PairFormat.places`: returns a first sentence for each chunk, and where a run must end.
      share: returns the random numbers.

    Returns:
      First sentences and stops, int64 [C].
    """
    first, last = place(bounds, documents, chunks, owner, share)
    tokens = chunks.partner_tokens
    return first, _reach(bounds, first, np.minimum(first + tokens, last), tokens)


def _reach(bounds: np.ndarray, first: np.ndarray, last: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Return the first sentence after `first` that starts at least `tokens` later, or `last`, by bisection.

    A search through all bounds would read pages from the whole memory map.
    """
    low, high, reached = first + 1, last, bounds[first] + tokens
    while (low < high).any():
        middle = (low + high) // 2
        is_before = (low < high) & (bounds[middle] < reached)
        low, high = np.where(is_before, middle + 1, low), np.where(is_before, high, middle)
    return low
