"""Sentences as examples: `[CLS] text [SEP]`, and the same read at certain positions."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary


@dataclasses.dataclass(frozen=True)
class TextExamples:
    """`Examples` of one segment each, in memory.

    Attributes:
      ids: the tokens of each, [CLS] and [SEP] included.
      vocabulary: of the tokens.
      notes: {what happened on the way: to how many}.
    """

    ids: list[np.ndarray]
    vocabulary: Vocabulary
    notes: dict[str, int]

    def __len__(self) -> int:
        return len(self.ids)

    def lengths(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Tokens of the examples from `start` to `stop` (the end); int32."""
        return self._lengths[start:stop]

    @functools.cached_property
    def _lengths(self) -> np.ndarray:
        return np.array([len(ids) for ids in self.ids], np.int32)

    def take(self, indices: np.ndarray) -> Ragged:
        """The examples at `indices` (int64 [M]), in that order; without labels."""
        chosen = [self.ids[index] for index in indices]
        tokens = np.concatenate(chosen)
        return Ragged(
            tokens=tokens,
            segments=np.zeros_like(tokens),
            special=self.vocabulary.is_special[tokens],
            offsets=np.concatenate([[0], np.cumsum(self._lengths[indices], dtype=np.int64)]),
            labels={},
            ids=np.asarray(indices, np.int64),
        )


def framed(encoded: Sequence[Sequence[int]], vocabulary: Vocabulary, seq_len: int) -> TextExamples:
    """Examples of at most T tokens; what is longer is cut at its end, and counted.

    Args:
      encoded: the ids of each text, without [CLS] and [SEP].
      vocabulary: of the ids.
      seq_len: T.
    """
    room = seq_len - 2
    too_long = sum(len(ids) > room for ids in encoded)
    return TextExamples(
        ids=[np.array([vocabulary.cls_id, *ids[:room], vocabulary.sep_id], np.int32) for ids in encoded],
        vocabulary=vocabulary,
        notes={f"cut to the {seq_len} tokens that the model reads": too_long} if too_long else {},
    )


@dataclasses.dataclass(frozen=True)
class Readings:
    """`Examples`: texts with [MASK] at K positions or fewer, the tokens of which are asked for.

    A text may be read any number of times. The labels are `positions` (int64 [M, K], 0 where there is none) and
    `originals` (int32 [M, K], what stood there).

    Attributes:
      texts: what is read.
      text_of: int64 [M], the text of each reading.
      positions_MK: int64, -1 for none, which come last.
    """

    texts: TextExamples
    text_of: np.ndarray
    positions_MK: np.ndarray

    @property
    def notes(self) -> dict[str, int]:
        """Those of the texts."""
        return self.texts.notes

    def __len__(self) -> int:
        return len(self.text_of)

    def lengths(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Tokens of the readings from `start` to `stop` (the end); int32."""
        return self.texts.lengths()[self.text_of[start:stop]]

    def take(self, indices: np.ndarray) -> Ragged:
        """The readings at `indices` (int64 [M]), in that order."""
        ragged, positions_MK = self.texts.take(self.text_of[indices]), self.positions_MK[indices]
        cells_MK = ragged.offsets[:-1, None] + np.maximum(positions_MK, 0)
        hidden, originals_MK = ragged.tokens.copy(), ragged.tokens[cells_MK]
        hidden[cells_MK[positions_MK >= 0]] = self.texts.vocabulary.mask_id
        return dataclasses.replace(
            ragged,
            tokens=hidden,
            labels={"positions": np.maximum(positions_MK, 0), "originals": originals_MK},
            ids=np.asarray(indices, np.int64),
        )


def readings(texts: TextExamples, positions: Sequence[np.ndarray], capacity: int) -> Readings:
    """Reads each text as often as it takes to ask for all of its positions, at most K = `capacity` at a time."""
    text_of, rows = [], []
    for text, wanted in enumerate(positions):
        for first in range(0, len(wanted), capacity):
            part = wanted[first : first + capacity]
            text_of.append(text)
            rows.append(np.pad(part, (0, capacity - len(part)), constant_values=-1))
    return Readings(texts, np.array(text_of, np.int64), np.array(rows, np.int64).reshape(-1, capacity))
