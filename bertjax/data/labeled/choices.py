"""Multiple choice: which of several endings or answers is correct (SWAG, Zellers et al., 2018, arXiv 1808.05326)."""

import dataclasses
import functools
from collections import Counter
from typing import ClassVar

import numpy as np

from bertjax.data.examples import Vocabulary, add_special_tokens
from bertjax.data.framing import special_tokens, truncate
from bertjax.data.labeled import tables
from bertjax.data.labeled.base import WHERE, LabeledExamples, LabeledFormat, Record, checked
from bertjax.data.sources.base import OnBad
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError

# The length of an example with one token in each of its two segments.
_SHORTEST = special_tokens(2) + 2


@dataclasses.dataclass(frozen=True)
class Choices(LabeledFormat):
    """Each row of a table is C examples `[CLS] context [SEP] choice [SEP]`, one per choice, in one row of a batch.

    All records of a run have the same C. An example has at most 1/C of the tokens of a row. Label: `choice`, the number
    of the correct choice, counted from 0, on all C examples.

    Attributes:
      context: the column of the text that all choices share; in a .tsv or .csv without a header, its number.
      question: a column whose text precedes each choice (a question, or the start of the endings); empty for none.
      choices: the columns of the choices, or the one field of a .jsonl that has a list of them.
      label: the column with the number of the correct choice, counted from 0.
      quoted: whether fields of a .tsv may be in double quotes.
    """

    kind: str = dataclasses.field(init=False, default="choices")
    context: str = "context"
    question: str = ""
    choices: tuple[str, ...] = ("choices",)
    label: str = "label"
    quoted: bool = False
    labels: ClassVar[tuple[str, ...]] = ("choice",)

    def __post_init__(self):
        super().__post_init__()
        if not all((self.context, *self.choices, self.choices, self.label)):
            raise UserError("examples.context, examples.choices and examples.label must each name a column")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Empty if the choices are a list, which is not a text."""
        return (*self._shared, *self.choices) if len(self.choices) > 1 else ()

    @property
    def _shared(self) -> tuple[str, ...]:
        """The columns that all choices share."""
        return (self.context, self.question) if self.question else (self.context,)

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        records = tables.read(path, [*self._shared, *self.choices, self.label], self.quoted, on_bad)
        [(count, _)] = Counter(len(self._choices_of(record)) for record in records).most_common(1)
        return checked(records, functools.partial(self._check, count=count), path, on_bad)

    def class_counts(self, records: list[Record]) -> Counter[str]:
        """Return how often each choice is correct, by its number; 0 for choices that never are."""
        counts = Counter({str(number): 0 for number in range(len(self._choices_of(records[0])))})
        counts.update(str(int(record[self.label])) for record in records)
        return counts

    def encode(
        self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: tuple[str, ...]
    ) -> LabeledExamples:
        count = len(classes) or len(self._choices_of(records[0]))
        if seq_len // count < _SHORTEST:
            raise UserError(
                f"a row of {seq_len} tokens leaves {seq_len // count} for each of {count} choices; raise "
                "stages.0.seq_len"
            )
        for record in records:
            self._check(record, count)
        contexts = tokenizer.encode([record[self.context] for record in records])
        first = [ids for ids in contexts for _ in range(count)]
        second = tokenizer.encode([text for record in records for text in self._second_segments(record)])
        first, second, notes = truncate(first, second, seq_len // count)
        numbers = np.array([int(record.get(self.label, 0)) for record in records], np.int32)
        return LabeledExamples(
            ragged=add_special_tokens(first, second, Vocabulary.of(tokenizer), {"choice": np.repeat(numbers, count)}),
            records=records,
            record_of=np.repeat(np.arange(len(records)), count),
            group=count,
            notes=notes,
        )

    def _second_segments(self, record: Record) -> list[str]:
        """Return the text after the context, for each choice."""
        question = [record[self.question]] if self.question else []
        return [" ".join([*question, choice]) for choice in self._choices_of(record)]

    def _choices_of(self, record: Record) -> list[str]:
        values = [record[column] for column in self.choices]
        return values[0] if len(values) == 1 and isinstance(values[0], list) else values

    def _check(self, record: Record, count: int) -> None:
        where = record.get(WHERE, "this record")
        choices = self._choices_of(record)
        if len(choices) < 2:
            raise UserError(
                f"{where} has {len(choices)} choice; set examples.choices to two or more columns, or to the field of "
                "a .jsonl with a list"
            )
        shared = [record[column] for column in self._shared]
        choice_columns = self.choices if len(self.choices) > 1 else self.choices * len(choices)
        for name, text in zip((*self._shared, *choice_columns), [*shared, *choices], strict=True):
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"{where} has no text in {name!r}; fill it in or leave the row out")
        if len(choices) != count:
            raise UserError(
                f"{where} has {len(choices)} choices, others have {count}; give all records the same number"
            )
        label = record.get(self.label, 0)
        if str(label) not in map(str, range(count)):
            raise UserError(
                f"{where} has the label {label!r}; write the number of the correct choice, from 0 to {count - 1}"
            )
