"""Examples stored as token ranges: the reading side shared by all formats."""

import dataclasses
import functools
from pathlib import Path

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.store import Split, TokenStore, at_random

_LENGTHS_AT_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True)
class StoredExamples:
    """`Examples` in a plan. Subclasses define `_lengths_of` and `take`.

    Attributes:
      store: token store.
      split: `train` or `heldout`.
      ranges: .npy file with the ranges from the format's blocks.
      vocabulary: the store's vocabulary.
    """

    store: TokenStore
    split: str
    ranges: Path
    vocabulary: Vocabulary

    def __getstate__(self) -> dict:
        """Pickle only the fields: a receiving process opens the memory maps itself."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def _ranges(self) -> np.ndarray:
        return at_random(np.load(self.ranges, mmap_mode="r"))

    @functools.cached_property
    def _source(self) -> Split:
        return self.store.split(self.split)

    @functools.cached_property
    def _tokens(self) -> np.ndarray:
        return at_random(self._source.tokens)

    def __len__(self) -> int:
        return len(self._ranges)

    def lengths(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return the lengths of examples `start` to `stop` (default: the end), [CLS] and [SEP] included; int32."""
        ranges = np.load(self.ranges, mmap_mode="r")[start:stop]  # in order, see `at_random`
        lengths = np.empty(len(ranges), np.int32)
        for first in range(0, len(ranges), _LENGTHS_AT_ONCE):
            lengths[first : first + _LENGTHS_AT_ONCE] = self._lengths_of(
                np.asarray(ranges[first : first + _LENGTHS_AT_ONCE])
            )
        return lengths

    def _lengths_of(self, ranges: np.ndarray) -> np.ndarray:
        """Return the example lengths for these ranges; int64 [M]."""
        raise TypeError(f"{type(self).__name__} has no _lengths_of()")

    def _assemble(self, indices, frame, sources, segments, labels) -> Ragged:
        """Assemble examples with text from the store.

        Args:
          indices: int64 [M], example numbers.
          frame: layout with the part lengths.
          sources: int64, where to read the text in the store's tokens, part by part.
          segments: int32 [n].
          labels: as in `Ragged`.
        """
        return Ragged.framed(frame, self._tokens[sources], self.vocabulary, segments, labels, indices)


def concatenated(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Concatenate start, ..., stop - 1 over all ranges; int64."""
    lengths = stops - starts
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
