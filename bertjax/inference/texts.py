"""Sentences as examples: `[CLS] text [SEP]`, and the same read at certain positions."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary, add_special_tokens
from bertjax.data.framing import truncate
from bertjax.data.labeled.base import LabeledExamples, Record


def framed(
    records: list[Record], encoded: Sequence[Sequence[int]], vocabulary: Vocabulary, seq_len: int
) -> LabeledExamples:
    """Return one example `[CLS] text [SEP]` of at most T tokens for each record, without labels.

    Args:
      records: what the texts come from.
      encoded: the token ids of each text, without [CLS] and [SEP].
      vocabulary: the vocabulary of the ids.
      seq_len: T.
    """
    segments, _, notes = truncate(encoded, None, seq_len)
    ragged = add_special_tokens(segments, None, vocabulary, {})
    return LabeledExamples(ragged, records, record_of=np.arange(len(records)), notes=notes)


@dataclasses.dataclass(frozen=True)
class Readings:
    """`Examples`: texts with [MASK] at K positions or fewer, the tokens of which are asked for.

    A text may be read any number of times. The labels are `positions` (int64 [M, K], 0 where there is none) and
    `originals` (int32 [M, K], what stood there).

    Attributes:
      texts: what is read.
      mask_id: the id of [MASK].
      text_of: int64 [M], the text of each reading.
      positions_MK: int64, -1 for none, which come last.
    """

    texts: LabeledExamples
    mask_id: int
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
        hidden[cells_MK[positions_MK >= 0]] = self.mask_id
        return dataclasses.replace(
            ragged,
            tokens=hidden,
            labels={"positions": np.maximum(positions_MK, 0), "originals": originals_MK},
            ids=np.asarray(indices, np.int64),
        )


def readings(texts: LabeledExamples, positions: Sequence[np.ndarray], mask_id: int, capacity: int) -> Readings:
    """Reads each text as often as it takes to ask for all of its positions, at most K = `capacity` at a time."""
    text_of, rows = [], []
    for text, wanted in enumerate(positions):
        for first in range(0, len(wanted), capacity):
            part = wanted[first : first + capacity]
            text_of.append(text)
            rows.append(np.pad(part, (0, capacity - len(part)), constant_values=-1))
    return Readings(texts, mask_id, np.array(text_of, np.int64), np.array(rows, np.int64).reshape(-1, capacity))
