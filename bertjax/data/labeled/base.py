"""The contract of a labeled format: how a file becomes records, and records become examples in memory."""

import dataclasses
import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from tqdm import tqdm

from bertjax.data.config import ON_BAD
from bertjax.data.examples import Ragged
from bertjax.data.formats.base import ExampleFormat
from bertjax.data.sources.bad import BadRecords
from bertjax.data.sources.base import OnBad
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, printable

# Plain JSON: one input of a task (a sentence, a pair, a question), with its label if that is known.
Record = dict[str, Any]
# The one key of a record that is not in the file: its place, as file and line.
WHERE = "_where"
# The names of the two files that every run has.
SPLITS = ("train", "heldout")


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
      further_heldout: {name: file} of further files that are scored; metrics are named `eval/<name>/<metric>`. Only
        `heldout` chooses the best checkpoint.
      limit: number of records of `train` to use, drawn at random with the classes in their proportions
        (`bertjax.data.labeled.subset`); 0 for all.
      limit_seed: seed of that draw, so that all seeds of a run have the same records.
      on_bad_record: `stop` at a record that lacks a column, has an empty text or is not what the format needs, or
        `skip` it and count it.
      list_input: name of a list of texts, such as the words of a sentence, that a record to predict may have in place
        of the `inputs`; empty for none.
    """

    train: str = ""
    heldout: str = ""
    further_heldout: dict[str, str] = dataclasses.field(default_factory=dict, kw_only=True)
    limit: int = 0
    list_input: ClassVar[str] = ""
    limit_seed: int = dataclasses.field(default=0, kw_only=True)
    on_bad_record: str = "stop"

    def __post_init__(self):
        super().__post_init__()
        if self.on_bad_record not in ON_BAD:
            known = ", ".join(ON_BAD)
            raise UserError(f"examples.on_bad_record={self.on_bad_record!r} is unknown; choose one of {known}")
        for name in self.further_heldout:
            if name in SPLITS or not re.fullmatch(r"[\w-]+", name):
                raise UserError(
                    f"examples.further_heldout has the name {name!r}; use letters, digits, - and _, and not "
                    f"{' or '.join(SPLITS)}"
                )
        if self.limit < 0:
            raise UserError(f"examples.limit={self.limit} must not be negative; 0 takes all records")

    @property
    def limit_note(self) -> str:
        """What a message about the training file adds if only a part of it is used."""
        return f" in the {self.limit} records that examples.limit takes" if self.limit else ""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns with the text of a record: all that `encode` needs if the record has no label."""
        return ()

    def read_unlabeled(self, path: str, classes: Collection[str]) -> list[Record] | None:
        """Return the records to predict of a file in the form of the training file; None for tables and lines of text.

        Args:
          path: the file.
          classes: the classes of the model.

        Raises:
          UserError: the file cannot be read, or a record is bad.
        """
        return None

    def with_answers(self, path: str, answers: Iterator[Any], classes: Collection[str]) -> Iterator[str] | None:
        """Yield the lines of a file that `read_unlabeled` reads, with the answers in it; None if it has no place.

        Args:
          path: the file.
          answers: the answers of the model, in the order of the file.
          classes: the classes of the model.
        """
        return None

    def read(self, path: str) -> list[Record]:
        """Return the records of a file; bad ones are left out and counted if `on_bad_record` is `skip`.

        Raises:
          UserError: the file cannot be read, or a record is bad; the message names the file and the line.
        """
        bad = BadRecords(self.on_bad_record, "records", remedy=", or set examples.on_bad_record=skip")
        records = self.parse(path, functools.partial(bad.add, path))
        if skipped := bad.skipped.get(path):
            counted = f"{skipped:,} of {skipped + len(records):,} records skipped"
            tqdm.write(f"{printable(path)}: {counted} (examples.on_bad_record=skip)", file=sys.stderr)
        return records

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        """Return the records of a file.

        Args:
          path: the file.
          on_bad: called with the error of each bad record; if the call returns, the record is left out.

        Raises:
          UserError: the file cannot be read, or no record is left.
        """
        raise TypeError(f"{type(self).__name__} has no parse()")

    def resolved(self, records: list[Record]) -> Self:
        """Return the format with the settings that follow from the records of the training file."""
        return self

    def without_missing(self, records: list[Record], path: str, classes: Collection[str]) -> list[Record]:
        """Return the records whose label stands for none only beside other ones, and print how many are left out.

        Args:
          records: the records of a file.
          path: the file, for the message.
          classes: the names of the classes of the training file; empty for the training file itself.
        """
        return records

    def further_train(self) -> list[Record]:
        """Return further records, without labels, to train on; `limit` does not count them."""
        return []

    def class_counts(self, records: list[Record]) -> Counter[str]:
        """Return the number of times each label occurs, by name; empty if labels are not names."""
        return Counter()

    def group_of(self, records: list[Record], classes: tuple[str, ...]) -> int:
        """Return how many examples share a row because they are compared, as the choices of a question are.

        Args:
          records, classes: see `encode`.
        """
        return 1

    def encode(
        self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: tuple[str, ...]
    ) -> LabeledExamples:
        """Return examples of at most `longest(T)` tokens.

        Args:
          records: records with labels; without them the labels of the examples are meaningless.
          tokenizer: the tokenizer of the model.
          seq_len: T of a row.
          classes: names of the labels, in the order of their numbers; empty if labels are numbers.

        Raises:
          UserError: a label is not among the classes, or is not a number although there are no classes.
        """
        raise TypeError(f"{type(self).__name__} has no encode()")


def checked(records: Sequence[Record], check: Callable[[Record], None], path: str, on_bad: OnBad) -> list[Record]:
    """Return the records for which `check` raises no error; the others go to `on_bad`.

    Raises:
      UserError: no record is left.
    """
    good = []
    for record in records:
        try:
            check(record)
        except UserError as error:
            on_bad(error)
        else:
            good.append(record)
    if not good:
        raise UserError(f"{path} has no record that can be used; correct the file")
    return good
