"""Examples whose tokens are ranges of a store: what all formats share when they read a plan."""

import dataclasses
import functools
from pathlib import Path

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary
from bertjax.data.store import Split, TokenStore

_LENGTHS_AT_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True)
class StoredExamples:
    """`Examples` of a plan. A subclass says how long they are (`_lengths_of`) and where their tokens come from.

    Attributes:
      store: holds the tokens.
      split: `train` or `heldout`.
      ranges: those of the format's blocks, as .npy.
      vocabulary: of the tokens.
    """

    store: TokenStore
    split: str
    ranges: Path
    vocabulary: Vocabulary

    def __getstate__(self) -> dict:
        """The fields alone: a process that receives the examples opens the memory maps itself."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def _ranges(self) -> np.ndarray:
        return np.asarray(np.load(self.ranges, mmap_mode="r"))

    @functools.cached_property
    def _source(self) -> Split:
        return self.store.split(self.split)

    @functools.cached_property
    def _tokens(self) -> np.ndarray:
        return np.asarray(self._source.tokens)

    def __len__(self) -> int:
        return len(self._ranges)

    def lengths(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Tokens of the examples from `start` to `stop` (the end), [CLS] and [SEP] included; int32."""
        ranges = self._ranges[start:stop]
        lengths = np.empty(len(ranges), np.int32)
        for first in range(0, len(ranges), _LENGTHS_AT_ONCE):
            lengths[first : first + _LENGTHS_AT_ONCE] = self._lengths_of(ranges[first : first + _LENGTHS_AT_ONCE])
        return lengths

    def _lengths_of(self, ranges: np.ndarray) -> np.ndarray:
        """Tokens of the examples with these ranges; int64 [M]."""
        raise TypeError(f"{type(self).__name__} has no _lengths_of()")

    def _assemble(self, indices, offsets, sources, separators, segments, labels) -> Ragged:
        """Lays out [CLS] at the start and [SEP] at the end of each example, and the tokens of the store between.

        Args:
          indices: int64 [M], which examples these are.
          offsets: int64 [M + 1], where each begins, and their end.
          sources: int64, the store's tokens in the order in which they fill the other places.
          separators: int64, places of the [SEP] within examples.
          segments: int32 [n].
          labels: as in `Ragged`.
        """
        tokens = np.empty(offsets[-1], np.int32)
        delimiter = np.zeros(offsets[-1], bool)
        for places, token in (
            (offsets[:-1], self.vocabulary.cls_id),
            (offsets[1:] - 1, self.vocabulary.sep_id),
            (separators, self.vocabulary.sep_id),
        ):
            delimiter[places] = True
            tokens[places] = token
        tokens[~delimiter] = self._tokens[sources]
        special = self.vocabulary.is_special[tokens]
        return Ragged(tokens, segments, special, offsets, labels, np.asarray(indices, np.int64))


def concatenated(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """start, ..., stop - 1 of every range, one range after the other; int64."""
    lengths = stops - starts
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Where things of these lengths begin when laid end to end, and where the last ends; int64 [M + 1]."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
