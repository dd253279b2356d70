"""Sentences and sentence pairs with any number of labels each (multi-label classification)."""

import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from bertjax.data.labeled import labels, tables
from bertjax.data.labeled.base import WHERE, Record, check_texts, setting_remedy, usable
from bertjax.data.labeled.texts import LabeledText
from bertjax.data.sources.base import OnBad
from bertjax.runtime.errors import UserError, say
from bertjax.runtime.setting import setting


@dataclasses.dataclass(frozen=True)
class LabelSets(LabeledText):
    """A table with one example per row, to which any number of classes apply. Label: `label_set`.

    Attributes:
      label: column with the class names: an array in a .jsonl or .json file, or text with `separator` between names;
        empty text if no class applies. Vectors of 0 and 1, of one length, are read as the places of their ones.
      separator: text between two names.
      label_columns: columns with 1 or 0 that are named after their classes, instead of the column `label`.
    """

    kind: str = dataclasses.field(init=False, default="label_sets")
    separator: str = setting(",", filled="set the text between two labels, such as ','")
    label_columns: tuple[str, ...] = ()
    label_name: ClassVar[str] = "label_set"
    labels_by_class: ClassVar[bool] = True

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        columns = (self.label_columns or (self.label,)) if self.label else ()
        records = tables.read(path, [*self.inputs, *columns], self.quoted, on_bad)
        values = [record[self.label] for record in records] if self.label and not self.label_columns else []
        length = _vector_length(values)

        def with_names(record: Record) -> Record:
            check_texts(record, self.inputs)
            return record | ({self.label: self._names(record, length)} if self.label else {})

        records = usable(records, with_names, path, on_bad)
        if length:
            what = f"has vectors, whose places are the classes 0 to {length - 1}"
            remedy = setting_remedy("; to name them, give each a column with 1 or 0 and set examples.label_columns")
            say(f"{path}: {self.label!r} {what}{remedy}", file=sys.stderr)
        elif mark := self._better_separator(values):
            what = f"has fewer labels with {mark!r} between names than with {self.separator!r}"
            remedy = setting_remedy(f"; if it is the mark, set examples.separator={mark!r}")
            say(f"warning: {path}: {self.label!r} {what}{remedy}", file=sys.stderr)
        return records

    def _better_separator(self, values: list[Any]) -> str:
        """Return a mark between the names that gives fewer of them: then the parts of most names recur."""
        texts = {value for value in values if isinstance(value, str)}
        lists = {name for value in values if isinstance(value, list) for name in value if isinstance(name, str)}
        own = lists | {part for text in texts for part in text.split(self.separator)}
        return labels.mark_between(texts | lists, len(set(map(labels.class_of, own))))

    def with_columns(self, columns: Mapping[str, str | int]) -> Self:
        changed = super().with_columns(columns)
        # A column with names takes the place of columns with 1 and 0.
        return dataclasses.replace(changed, label_columns=()) if "label" in columns else changed

    def is_label_column(self, values: list[Any]) -> bool:
        marks = f"[,;|]|{re.escape(self.separator)}"
        parts = [value if isinstance(value, list) else re.split(marks, str(value)) for value in values]
        return super().is_label_column([part for value in parts for part in value])

    def class_counts(self, records: list[Record]) -> Counter[str]:
        return Counter(name for record in records if self.label for name in record[self.label])

    def label_numbers(self, records: list[Record], classes: tuple[str, ...]) -> np.ndarray:
        """Return a multi-hot matrix: 1 where a class applies to a record; float32 [M, C].

        Raises:
          UserError: a label is not among the classes.
        """
        numbers_MC, places = np.zeros((len(records), len(classes)), np.float32), dict(zip(classes, range(len(classes))))
        for number, record in enumerate(records):
            for name in record.get(self.label, ()):
                numbers_MC[number, self.index_of(name, places, record, f"label {name!r}")] = 1.0
        return numbers_MC

    def _names(self, record: Record, length: int) -> list[str]:
        """Return the classes that apply to a record, without duplicates.

        Args:
          record: the record.
          length: number of places if the labels are vectors; 0 if they are names.
        """
        if self.label_columns:
            return [column for column in self.label_columns if self._applies(record, column)]
        value: Any = record[self.label]
        if length:
            if len(vector := _vector(value)) != length:
                others = f"where others have {length} numbers 0 or 1; write the same"
                raise UserError(f"{record[WHERE]} has {str(value)[:40]!r} in {self.label!r}, {others}")
            return [str(place) for place, number in enumerate(vector) if number == "1"]
        # pandas writes a list as text.
        is_list = isinstance(value, str) and re.fullmatch(r"\s*\[.*\]\s*", value, re.DOTALL)
        values = value.split(self.separator) if isinstance(value, str) else value
        if is_list or not isinstance(values, list) or not all(isinstance(name, (str, int)) for name in values):
            remedy = f"write an array of names, or names with {self.separator!r} between them"
            raise UserError(f"{record[WHERE]} has the labels {str(value)[:40]!r} in {self.label!r}; {remedy}")
        names = [labels.class_of(name) for name in values]
        return list(dict.fromkeys(filter(None, names)))

    def _applies(self, record: Record, column: str) -> bool:
        value = labels.class_of(record[column]).strip().lower()
        if value not in ("0", "1", "false", "true"):
            raise UserError(f"{record[WHERE]} has {str(record[column])[:40]!r} in {column!r}; write 1 if it fits, or 0")
        return value in ("1", "true")


def _vector_length(values: list[Any]) -> int:
    """Return the length of vectors of 0 and 1, as transformers wants them; 0 if the labels are names.

    In a list of names no name occurs twice, so a list of 0 and 1 that repeats one is a vector. If most labels are
    vectors of one length, all are.
    """
    vectors = list(map(_vector, values))
    if all(vector == sorted(set(vector)) for vector in vectors):
        return 0
    length, count = Counter(map(len, filter(None, vectors))).most_common(1)[0]
    return length if 2 * count > len(values) else 0


def _vector(value: Any) -> list[str]:
    """Return a label as a list of `0` and `1`; empty if it is something else."""
    values = re.split(r"[\s,;|]+", value.strip("[] ")) if isinstance(value, str) else value
    names = [labels.class_of(each) for each in values] if isinstance(values, list) else []
    numbers = [{"false": "0", "true": "1"}.get(name.lower(), name) for name in names]
    return numbers if set(numbers) <= {"0", "1"} else []
