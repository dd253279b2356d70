"""Views of texts with [MASK] at some positions: the input of a masked-LM head, and its labels."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bertjax.data.examples import Ragged
from bertjax.data.labeled.base import LabeledExamples


@dataclasses.dataclass(frozen=True)
class MaskedViews:
    """`Examples`: views of texts, each with [MASK] at up to K positions whose tokens are predicted.

    A text may have any number of views. The labels are `positions` (int64 [M, K], 0 for unused places), `originals`
    (int32 [M, K], the masked tokens) and `is_used` (bool [M, K]).

    Attributes:
      texts: the texts before masking.
      mask_id: id of [MASK].
      text_of: int64 [M], index of each view's text.
      positions_MK: int64, -1 for unused places, which come last.
    """

    texts: LabeledExamples
    mask_id: int
    text_of: np.ndarray
    positions_MK: np.ndarray

    @classmethod
    def of(cls, texts: LabeledExamples, positions: Sequence[np.ndarray], mask_id: int, capacity: int) -> "MaskedViews":
        """Split each text's positions into views with at most K = `capacity` positions."""
        text_of, rows = [], []
        for text, all_of_text in enumerate(positions):
            for first in range(0, len(all_of_text), capacity):
                part = all_of_text[first : first + capacity]
                text_of.append(text)
                # Unused places are -1: position 0 is a real token.
                rows.append(np.pad(part, (0, capacity - len(part)), constant_values=-1))
        positions_MK = np.array(rows, np.int64).reshape(-1, capacity)
        return cls(texts, mask_id, np.array(text_of, np.int64), positions_MK)

    @property
    def notes(self) -> dict[str, int]:
        """The notes of the texts."""
        return self.texts.notes

    def __len__(self) -> int:
        return len(self.text_of)

    def lengths(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Token counts for views `start` to `stop` (default: the end); int32."""
        return self.texts.lengths()[self.text_of[start:stop]]

    def take(self, indices: np.ndarray) -> Ragged:
        """The views at `indices` (int64 [M]), in that order."""
        ragged, positions_MK = self.texts.take(self.text_of[indices]), self.positions_MK[indices]
        # Views are built only when a batch needs them: a text of n tokens has n views, n times its memory.
        cells_MK = ragged.offsets[:-1, None] + np.maximum(positions_MK, 0)
        tokens, originals_MK = ragged.tokens.copy(), ragged.tokens[cells_MK]
        is_used_MK = positions_MK >= 0
        tokens[cells_MK[is_used_MK]] = self.mask_id
        return dataclasses.replace(
            ragged,
            tokens=tokens,
            labels={"positions": np.maximum(positions_MK, 0), "originals": originals_MK, "is_used": is_used_MK},
            ids=np.asarray(indices, np.int64),
        )
