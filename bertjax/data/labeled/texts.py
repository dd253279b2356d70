"""Sentences and pairs of sentences with one label each, as in GLUE (Wang et al., 2019, arXiv 1804.07461)."""

import dataclasses
import functools
import math
from collections import Counter
from typing import ClassVar

import numpy as np

from bertjax.data.examples import Vocabulary, add_special_tokens
from bertjax.data.framing import truncate
from bertjax.data.labeled import labels, tables
from bertjax.data.labeled.base import WHERE, LabeledExamples, LabeledFormat, Record, checked
from bertjax.data.sources.base import OnBad
from bertjax.data.tokenizer import Tokenizer
from bertjax.errors import UserError, shorten


@dataclasses.dataclass(frozen=True)
class LabeledText(LabeledFormat):
    """Each row of a table is one example: `[CLS] text [SEP]` or `[CLS] text [SEP] pair [SEP]`. Label: `label`.

    Attributes:
      text: the column of the (first) sentence; in a .tsv or .csv without a header, its number, counted from 0.
      pair: the column of the second sentence; empty for single sentences.
      label: the column of the label: a name, or a number for an objective that predicts numbers; empty for none.
      quoted: whether fields of a .tsv may be in double quotes.
    """

    kind: str = dataclasses.field(init=False, default="labeled_text")
    text: str = "sentence"
    pair: str = ""
    label: str = "label"
    quoted: bool = False
    label_name: ClassVar[str] = "label"

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label_name,) if self.label else ()

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.text, self.pair) if self.pair else (self.text,)

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        columns = [column for column in (*self.inputs, self.label) if column]
        records = tables.read(path, columns, self.quoted, on_bad)
        usual = labels.usual_kind(record[self.label] for record in records) if self.label else ""
        return checked(records, functools.partial(self._check, usual=usual), path, on_bad)

    def _check(self, record: Record, usual: str) -> None:
        for column in self.inputs:
            if not isinstance(record[column], str) or not record[column].strip():
                raise UserError(f"{record[WHERE]} has no text in {column!r}; fill it in or leave the row out")
        if self.label:
            self.check_label(record, usual)

    def check_label(self, record: Record, usual: str) -> None:
        """Raise UserError unless a record has a label of the usual kind."""
        labels.check(record, self.label, usual)

    def class_counts(self, records: list[Record]) -> Counter[str]:
        return Counter(labels.class_of(record[self.label]) for record in records if self.label)

    def encode(
        self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: tuple[str, ...]
    ) -> LabeledExamples:
        first = tokenizer.encode([record[self.text] for record in records])
        second = tokenizer.encode([record[self.pair] for record in records]) if self.pair else None
        first, second, notes = truncate(first, second, self.longest(seq_len))
        numbers = self.label_numbers(records, classes)
        return LabeledExamples(
            ragged=add_special_tokens(first, second, Vocabulary.of(tokenizer), {self.label_name: numbers}),
            records=records,
            record_of=np.arange(len(records)),
            notes=notes,
        )

    def label_numbers(self, records: list[Record], classes: tuple[str, ...]) -> np.ndarray:
        """Return the label of each record: the number of its class, int32, or float32 without classes; 0 if unlabeled.

        Raises:
          UserError: a label is not among the classes, or is not a number although there are no classes.
        """
        return np.array([self._label(record, classes) for record in records], np.int32 if classes else np.float32)

    def _label(self, record: Record, classes: tuple[str, ...]) -> int | float:
        if self.label not in record:
            return 0
        label, where = record[self.label], record.get(WHERE, "this record")
        if classes:
            if labels.class_of(label) not in classes:
                raise UserError(
                    f"{where} has the label {label!r}, which the training file lacks{self.limit_note} "
                    f"({shorten(classes, 8)})"
                )
            return classes.index(labels.class_of(label))
        number = labels.number_of(label)
        if math.isnan(number):
            raise UserError(f"{where} has the label {label!r}, which is not a number; correct it or leave the row out")
        return number
