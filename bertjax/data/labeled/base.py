"""The contract of a labeled format: how a file becomes records, and records become examples in memory."""

import dataclasses
from collections import Counter
from typing import Any

import numpy as np

from bertjax.data.examples import Ragged
from bertjax.data.formats.base import ExampleFormat
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError

# Plain JSON: one input of a task (a sentence, a pair, a question), with its label if that is known.
Record = dict[str, Any]
# The one key of a record that is not in the file: its place, as file and line.
WHERE = "_where"


@dataclasses.dataclass(frozen=True)
class LabeledExamples:
    """`Examples` in memory.

    Attributes:
      ragged: the M examples, with ids 0..M-1.
      records: the records that they were made of.
      record_of: int64 [M], index of the record of each example; a long record may have several examples.
      group: number of consecutive examples that belong together and share a row of a batch.
      notes: {what was done: how often}, such as texts that were cut.
    """

    ragged: Ragged
    records: list[Record]
    record_of: np.ndarray
    group: int = 1
    notes: dict[str, int] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ragged.ids)

    def lengths(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Tokens of the examples from `start` to `stop` (the end); int32."""
        return self.ragged.lengths[start:stop].astype(np.int32)

    def take(self, indices: np.ndarray) -> Ragged:
        """The examples at `indices` (int64 [M]), in that order."""
        return self.ragged.take(indices)


@dataclasses.dataclass(frozen=True)
class LabeledFormat(ExampleFormat):
    """How labeled files become examples; the fields of a subclass are its settings.

    Attributes:
      train: the training file.
      heldout: the file that is scored, such as a development set.
      limit: number of records to use from the start of `train`; 0 for all.
    """

    train: str = ""
    heldout: str = ""
    limit: int = 0

    def __post_init__(self):
        if self.limit < 0:
            raise UserError(f"examples.limit={self.limit} must not be negative; 0 takes all records")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns with the text of a record: all that `encode` needs if the record has no label."""
        return ()

    def read(self, path: str) -> list[Record]:
        """Return the records of a file.

        Raises:
          UserError: the file cannot be read, or a record is invalid; the message names the file and the line.
        """
        raise TypeError(f"{type(self).__name__} has no read()")

    def class_counts(self, records: list[Record]) -> Counter[str]:
        """Return the number of times each label occurs, by name; empty if labels are not names."""
        return Counter()

    def encode(
        self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: tuple[str, ...]
    ) -> LabeledExamples:
        """Return examples of at most T tokens.

        Args:
          records: records with labels; without them the labels of the examples are meaningless.
          tokenizer: the tokenizer of the model.
          seq_len: T.
          classes: names of the labels, in the order of their numbers; empty if labels are numbers.

        Raises:
          UserError: a label is not among the classes, or is not a number although there are no classes.
        """
        raise TypeError(f"{type(self).__name__} has no encode()")
