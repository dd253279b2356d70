"""Multiple choice: select the correct ending or answer (SWAG, Zellers et al., 2018, arXiv 1808.05326)."""

import dataclasses
import functools
from collections import Counter
from typing import ClassVar

import numpy as np

from bertjax.data.examples import Vocabulary, add_special_tokens
from bertjax.data.framing import special_tokens, truncate, whole_lengths
from bertjax.data.labeled import labels, tables
from bertjax.data.labeled.base import WHERE, LabeledExamples, LabeledFormat, Record, checked
from bertjax.data.sources.base import OnBad
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class ChoiceFormat(LabeledFormat):
    """Base class: a record with C choices becomes C examples `[CLS] context [SEP] choice [SEP]` that share a row.

    C is constant within a run, and each example takes at most 1/C of the row. Label: `choice`, the index of the correct
    choice, repeated on all C examples. Subclasses name the four columns.
    """

    context: ClassVar[str]
    question: ClassVar[str]
    choices: ClassVar[tuple[str, ...]]
    label: ClassVar[str]
    labels: ClassVar[tuple[str, ...]] = ("choice",)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Text columns; empty if one field lists the choices, because a list is not a text."""
        return (*self.shared, *self.choices) if len(self.choices) > 1 else ()

    def longest(self, seq_len: int) -> int:
        """Return the maximum example length; a list may hold as few as two choices."""
        return min(self.max_tokens or seq_len, seq_len // max(2, len(self.choices)))

    @property
    def shared(self) -> tuple[str, ...]:
        """Columns that are common to all choices."""
        return (self.context, self.question) if self.question else (self.context,)

    def class_counts(self, records: list[Record]) -> Counter[str]:
        """Count how often each choice index is correct, zeros included."""
        counts = Counter({str(number): 0 for number in range(len(self.choices_of(records[0])))})
        counts.update(labels.class_of(record[self.label]) for record in records)
        return counts

    def group_of(self, records: list[Record], classes: tuple[str, ...]) -> int:
        """Return C."""
        return len(classes) or len(self.choices_of(records[0]))

    def encode(
        self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: tuple[str, ...]
    ) -> LabeledExamples:
        count = self.group_of(records, classes)
        longest = min(self.longest(seq_len), seq_len // count)
        if longest < special_tokens(2, tokenizer.pair_separators) + 2:  # one token per segment
            raise UserError(
                f"a row of {seq_len} tokens leaves {longest} for each of {count} choices; raise stages.0.seq_len or "
                "examples.max_tokens"
            )
        for record in records:
            self.check(record, count)
        # The context is tokenized once and repeated for every choice.
        contexts = tokenizer.encode([record[self.context] for record in records])
        first = [ids for ids in contexts for _ in range(count)]
        second = tokenizer.encode([text for record in records for text in self.second_segments(record)])
        whole = whole_lengths(first, second, tokenizer.pair_separators)
        first, second, notes = truncate(first, second, longest, tokenizer.pair_separators)
        numbers = np.array([int(labels.class_of(record.get(self.label, 0))) for record in records], np.int32)
        return LabeledExamples(
            ragged=add_special_tokens(first, second, Vocabulary.of(tokenizer), {"choice": np.repeat(numbers, count)}),
            records=records,
            record_of=np.repeat(np.arange(len(records)), count),
            group=count,
            notes=notes,
            whole_lengths=whole,
        )

    def second_segments(self, record: Record) -> list[str]:
        """Return the second segment (question and choice) for each choice."""
        question = [record[self.question]] if self.question else []
        return [" ".join([*question, choice]) for choice in self.choices_of(record)]

    def choices_of(self, record: Record) -> list[str]:
        """Return the choice texts, from separate columns or from one list-valued column."""
        values = [record[column] for column in self.choices]
        return values[0] if len(values) == 1 and isinstance(values[0], list) else values

    def check(self, record: Record, count: int) -> None:
        """Raise UserError unless the record has `count` choices and its label is the index of one."""
        where, choices = record.get(WHERE, "this record"), self.choices_of(record)
        if len(choices) != count:
            raise UserError(
                f"{where} has {len(choices)} choices, others have {count}; give all records the same number"
            )
        label = record.get(self.label, 0)
        if labels.class_of(label) not in map(str, range(count)):
            raise UserError(
                f"{where} has the label {label!r}; write the number of the correct choice, from 0 to {count - 1}"
            )


@dataclasses.dataclass(frozen=True)
class Choices(ChoiceFormat):
    """A table with one multiple-choice record per row.

    Attributes:
      context: column with the text common to all choices, by name, or by number if the .tsv or .csv has no header.
      question: column with text to put before each choice (a question, or the beginning of all endings); empty for
        none.
      choices: one column per choice, or a single .jsonl field that lists them.
      label: column with the index of the correct choice, from 0.
      quoted: whether .tsv fields may be in double quotes.
    """

    kind: str = dataclasses.field(init=False, default="choices")
    context: str = "context"
    question: str = ""
    choices: tuple[str, ...] = ("choices",)
    label: str = "label"
    quoted: bool = False

    def __post_init__(self):
        super().__post_init__()
        if not all((self.context, *self.choices, self.choices, self.label)):
            raise UserError("examples.context, examples.choices and examples.label must each name a column")

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        records = tables.read(path, [*self.shared, *self.choices, self.label], self.quoted, on_bad)
        [(count, _)] = Counter(len(self.choices_of(record)) for record in records).most_common(1)
        return checked(records, functools.partial(self.check, count=count), path, on_bad)

    def check(self, record: Record, count: int) -> None:
        """Check the base class's conditions, and that no text is missing."""
        where, choices = record.get(WHERE, "this record"), self.choices_of(record)
        if len(choices) < 2:
            raise UserError(
                f"{where} has {len(choices)} choice; set examples.choices to two or more columns, or to the field of "
                "a .jsonl with a list"
            )
        shared = [record[column] for column in self.shared]
        choice_columns = self.choices if len(self.choices) > 1 else self.choices * len(choices)
        for name, text in zip((*self.shared, *choice_columns), [*shared, *choices], strict=True):
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"{where} has no text in {name!r}; fill it in or leave the row out")
        super().check(record, count)
