"""The contract of a labeled format: records of a file, and how they become examples in memory."""

import dataclasses
from collections import Counter
from typing import Any

import numpy as np

from bertjax.data.examples import Ragged
from bertjax.data.formats.base import ExampleFormat
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError

# Plain JSON: one input of a task (a sentence, a pair, a question), with its label where that is known.
Record = dict[str, Any]
# The one key of a record that is not of the file: where in which file it stands.
WHERE = "_where"


@dataclasses.dataclass(frozen=True)
class LabeledExamples:
    """`Examples` in memory.

    Attributes:
      ragged: all of them, with ids 0..M-1.
      records: what they were made of.
      record_of: int64 [M], the record of each example; a long record may have several.
      group: so many examples in a row of this list belong together, and share a row of a batch.
      notes: {what happened: how often}, such as how many texts were cut.
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
    """How files of labeled examples become examples; the fields of a subclass are its choices.

    Attributes:
      train: the file that is learned from.
      heldout: the file that is scored (a development set).
      limit: records of `train` used at most, the first ones; 0 for all.
    """

    train: str = ""
    heldout: str = ""
    limit: int = 0

    def __post_init__(self):
        if self.limit < 0:
            raise UserError(f"examples.limit={self.limit} must not be negative; 0 takes all records")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns that hold the text of a record: all that `encode` needs of one without a label."""
        return ()

    def read(self, path: str) -> list[Record]:
        """The records of a file.

        Raises:
          UserError: it cannot be read, or a record is not what it should be; says the file and the line.
        """
        raise TypeError(f"{type(self).__name__} has no read()")

    def class_counts(self, records: list[Record]) -> Counter[str]:
        """How often each label occurs, by its name; empty where labels are no names."""
        return Counter()

    def encode(
        self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: tuple[str, ...]
    ) -> LabeledExamples:
        """Examples of at most T tokens.

        Args:
          records: with labels, or without any to be predicted; then the labels of the examples mean nothing.
          tokenizer: gives the tokens.
          seq_len: T.
          classes: names of the labels, in the order of their numbers; empty where labels are numbers.

        Raises:
          UserError: a label that is not among the classes, or no number where it must be one.
        """
        raise TypeError(f"{type(self).__name__} has no encode()")
