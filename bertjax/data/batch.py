"""Scatter ragged examples into batch rows, and build the core arrays."""

import dataclasses
import functools

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary

MOST_ID = np.iinfo(np.int32).max


@dataclasses.dataclass(frozen=True)
class Draw:
    """Everything beside the examples that randomness on the host depends on, and the step for schedules.

    Attributes:
      seed: the run's seed.
      epochs: int64 [M], each example's epoch; one batch may span two epochs.
      step: number of the training step that reads the batch, from 0, used by rates with a schedule; None outside
        training, where schedules are at their end.
    """

    seed: int
    epochs: np.ndarray
    step: int | None = None


@dataclasses.dataclass(frozen=True)
class PlacedExamples:
    """M ragged examples placed in B rows with T tokens and N slots each.

    Attributes:
      ragged: the examples.
      shape: (B, T, N).
      rows: int64 [M], each example's row.
      slots: int64 [M], each example's slot within its row.
      starts: int64 [M], first column that each example occupies.
    """

    ragged: Ragged
    vocabulary: Vocabulary
    shape: tuple[int, int, int]
    rows: np.ndarray
    slots: np.ndarray
    starts: np.ndarray

    @property
    def seq_len(self) -> int:
        """Return T."""
        return self.shape[1]

    @functools.cached_property
    def token_cells(self) -> np.ndarray:
        """Return each token's index in the flattened [B, T]; int64 [n]."""
        return self.ragged.spread(self.rows * self.seq_len + self.starts) + self.ragged.token_index

    @property
    def cls_columns(self) -> np.ndarray:
        """Return the [CLS] column per example; int32 [M]."""
        return (self.starts + self.ragged.cls_index).astype(np.int32)

    def tokens_to_rows(self, flat: np.ndarray, fill: int | float = 0) -> np.ndarray:
        """Scatter per-token values [n] to [B, T], with `fill` at padding; same dtype."""
        rows, seq_len, _ = self.shape
        values = np.full(rows * seq_len, fill, flat.dtype)
        values[self.token_cells] = flat
        return values.reshape(rows, seq_len)

    def examples_to_rows(self, values: np.ndarray, fill: int | float = 0) -> np.ndarray:
        """Scatter per-example values [M, ...] to [B, N, ...], with `fill` in empty slots; same dtype."""
        rows, _, slots = self.shape
        values_BN = np.full((rows, slots, *values.shape[1:]), fill, values.dtype)
        values_BN[self.rows, self.slots] = values
        return values_BN


def place(ragged: Ragged, rows_BN: np.ndarray, seq_len: int, vocabulary: Vocabulary) -> PlacedExamples:
    """Place examples in rows, one after the other in slot order.

    Args:
      ragged: M examples.
      rows_BN: example in each slot (0..M-1, each exactly once), -1 for an empty slot.
      seq_len: T.

    Raises:
      ValueError: a row's examples have more than T tokens.
    """
    rows, slots = np.nonzero(rows_BN >= 0)
    members = rows_BN[rows, slots]
    lengths_BN = np.zeros(rows_BN.shape, np.int64)
    lengths_BN[rows, slots] = ragged.lengths[members]
    # Empty slots count 0 tokens, so the running total puts every example right behind the previous filled slot.
    stops_BN = np.cumsum(lengths_BN, axis=1)
    if stops_BN.max(initial=0) > seq_len:
        raise ValueError(f"the examples of a row have {stops_BN.max()} tokens and the row has {seq_len}")
    starts = (stops_BN - lengths_BN)[rows, slots]
    # `nonzero` lists slots row by row. Every per-example array follows the order of `ragged`, so sort back to it.
    order = np.argsort(members)
    shape = (len(rows_BN), seq_len, rows_BN.shape[1])
    return PlacedExamples(ragged, vocabulary, shape, rows[order], slots[order], starts[order])


def core(placed: PlacedExamples) -> dict[str, np.ndarray]:
    """Return the arrays that every batch has, all int32.

    - `tokens_BT`: [PAD] at positions without a token.
    - `segments_BT`.
    - `positions_BT`: restart in each example.
    - `examples_BT`: 0 = padding, else slot + 1.
    - `example_ids_BN`: -1 = empty slot.
    - `summary_positions_BN`: [CLS] column; 0 in an empty slot.

    Example ids have 64 bits on the host (`Ragged.ids`), where masking is drawn from them. The accelerator only checks
    whether a slot is empty, so its ids are cut to 31 bits. Plans can have more examples than that together, and a
    flipped sign would empty their slots.
    """
    ragged = placed.ragged
    return {
        "tokens_BT": placed.tokens_to_rows(ragged.tokens, placed.vocabulary.pad_id),
        "segments_BT": placed.tokens_to_rows(ragged.segments),
        "positions_BT": placed.tokens_to_rows(ragged.token_index.astype(np.int32)),
        "examples_BT": placed.tokens_to_rows(ragged.spread(placed.slots.astype(np.int32) + 1)),
        "example_ids_BN": placed.examples_to_rows((ragged.ids & MOST_ID).astype(np.int32), fill=-1),
        "summary_positions_BN": placed.examples_to_rows(placed.cls_columns),
    }
