"""From ragged examples to the rows of a batch: where every token and every example sits, and the core arrays."""

import dataclasses
import functools

import numpy as np

from bertjax.data.examples import Ragged, Vocabulary


@dataclasses.dataclass(frozen=True)
class Draw:
    """What randomness on the host depends on besides the examples.

    Attributes:
      seed: of the run.
      epochs: int64 [M], how often the plan was run through before, for each example: one batch may span two epochs.
    """

    seed: int
    epochs: np.ndarray


@dataclasses.dataclass(frozen=True)
class PlacedExamples:
    """M ragged examples and their places in B rows of T tokens with N slots each.

    Attributes:
      ragged: the examples themselves.
      vocabulary: of their tokens.
      shape: (B, T, N).
      rows: int64 [M], the row of each example.
      slots: int64 [M], its slot in that row.
      starts: int64 [M], the column of its first token.
    """

    ragged: Ragged
    vocabulary: Vocabulary
    shape: tuple[int, int, int]
    rows: np.ndarray
    slots: np.ndarray
    starts: np.ndarray

    @property
    def seq_len(self) -> int:
        """T."""
        return self.shape[1]

    @functools.cached_property
    def token_cells(self) -> np.ndarray:
        """Where every token sits in the flattened [B, T]; int64 [n]."""
        return self.ragged.spread(self.rows * self.seq_len + self.starts) + self.ragged.token_index

    def tokens_to_rows(self, flat: np.ndarray, fill: int | float = 0) -> np.ndarray:
        """Values of tokens [n] laid out as [B, T], with `fill` where no token is; dtype of `flat`."""
        rows, seq_len, _ = self.shape
        values = np.full(rows * seq_len, fill, flat.dtype)
        values[self.token_cells] = flat
        return values.reshape(rows, seq_len)

    def examples_to_rows(self, values: np.ndarray, fill: int | float = 0) -> np.ndarray:
        """Values of examples [M] laid out as [B, N], with `fill` in empty slots; dtype of `values`."""
        rows, _, slots = self.shape
        values_BN = np.full((rows, slots), fill, values.dtype)
        values_BN[self.rows, self.slots] = values
        return values_BN


def place(ragged: Ragged, rows_BN: np.ndarray, seq_len: int, vocabulary: Vocabulary) -> PlacedExamples:
    """Lays examples out one after the other, each row in the order of its slots.

    Args:
      ragged: M examples.
      rows_BN: which of the M examples (0..M-1, each exactly once) sits in each slot, -1 for none.
      seq_len: T.
      vocabulary: of the tokens.

    Raises:
      ValueError: the examples of a row have more than T tokens.
    """
    rows, slots = np.nonzero(rows_BN >= 0)
    members = rows_BN[rows, slots]
    lengths_BN = np.zeros(rows_BN.shape, np.int64)
    lengths_BN[rows, slots] = ragged.lengths[members]
    stops_BN = np.cumsum(lengths_BN, axis=1)
    if stops_BN.max(initial=0) > seq_len:
        raise ValueError(f"the examples of a row have {stops_BN.max()} tokens and the row has {seq_len}")
    starts = (stops_BN - lengths_BN)[rows, slots]
    order = np.argsort(members)
    shape = (len(rows_BN), seq_len, rows_BN.shape[1])
    return PlacedExamples(ragged, vocabulary, shape, rows[order], slots[order], starts[order])


def core(placed: PlacedExamples) -> dict[str, np.ndarray]:
    """The part of a batch that every objective shares, all int32.

    `tokens_BT` ([PAD] where no token is), `segments_BT`, `positions_BT` (restart in each example), `examples_BT`
    (0 = padding, 1.. = slot of the row + 1), `example_ids_BN` (-1 = none), `summary_positions_BN` (the column of
    [CLS]; 0 in an empty slot).
    """
    ragged = placed.ragged
    return {
        "tokens_BT": placed.tokens_to_rows(ragged.tokens, placed.vocabulary.pad_id),
        "segments_BT": placed.tokens_to_rows(ragged.segments),
        "positions_BT": placed.tokens_to_rows(ragged.token_index.astype(np.int32)),
        "examples_BT": placed.tokens_to_rows(ragged.spread(placed.slots.astype(np.int32) + 1)),
        "example_ids_BN": placed.examples_to_rows(ragged.ids.astype(np.int32), fill=-1),
        "summary_positions_BN": placed.examples_to_rows(placed.starts.astype(np.int32)),
    }
