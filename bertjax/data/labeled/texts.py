"""Sentences and sentence pairs with one label each, as in GLUE (Wang et al., 2019, arXiv 1804.07461).

The columns of the text and of the label are found if only one column can be each. If equal texts have different labels,
at least one of the labels is wrong, or the text does not decide it.
"""

import dataclasses
import functools
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from tqdm import tqdm

from bertjax.data.examples import Vocabulary, add_special_tokens
from bertjax.data.framing import truncate, whole_lengths
from bertjax.data.labeled import base, json_objects, labels, tables
from bertjax.data.labeled.base import WHERE, Classes, LabeledExamples, LabeledFormat, Record
from bertjax.data.labeled.split import text_key
from bertjax.data.sources.base import OnBad
from bertjax.data.text.unicode import has_unspaced
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError, printable, say, shorten
from bertjax.runtime.setting import OF_INPUT, OF_RECORDS, PLACE, TRAINING_ONLY, setting

# An extra label: 1 for labeled records, 0 for `unlabeled` ones.
IS_LABELED = "is_labeled"


@dataclasses.dataclass(frozen=True)
class LabeledText(LabeledFormat):
    """A table with one example per row: `[CLS] text [SEP]` or `[CLS] text [SEP] pair [SEP]`. Label: `label`.

    Attributes:
      text: column with the (first) sentence, by name, or by number from 0 if the .tsv or .csv has no header; `auto`
        finds it in the training file.
      pair: column with the second sentence; empty for single sentences.
      label: column with the label, a class name or a number, depending on the objective; empty for none, and
        `auto` as above.
      quoted: whether .tsv fields may be in double quotes.
      skip_missing_labels: whether to skip and count unlabeled records: the label is empty, `-`, `-100` beside names,
        or `-1` or `-100` beside classes 0, 1, 2, ... If False, these are classes and an empty label is an error.
      unlabeled: extra training texts without labels: a table with the same text columns, or any other file with one
        text per line. A teacher labels them (`objective.kind=distilled`). Empty for none.
    """

    kind: str = dataclasses.field(init=False, default="labeled_text")
    text: str = setting("sentence", filled="name the column of the text", metadata=OF_INPUT)
    pair: str = setting("", metadata=OF_INPUT)
    label: str = "label"
    quoted: bool = setting(False, metadata=OF_INPUT)
    skip_missing_labels: bool = setting(True, kw_only=True, metadata=OF_RECORDS)
    unlabeled: str = setting("", kw_only=True, metadata=PLACE | TRAINING_ONLY)
    label_name: ClassVar[str] = "label"
    is_divisible: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        if self.unlabeled and not (type(self) is LabeledText and self.label):
            raise UserError(
                f"examples.unlabeled={self.unlabeled} needs examples.kind=labeled_text and a label; remove it"
            )

    @property
    def labels(self) -> tuple[str, ...]:
        return ((self.label_name,) if self.label else ()) + ((IS_LABELED,) if self.unlabeled else ())

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.text, self.pair) if self.pair else (self.text,)

    def located(self, has_classes: bool = True) -> Self:
        # A loaded model has its columns, and may lack the file.
        if AUTO not in (self.text, self.pair, self.label) or not self.train:
            return self
        is_label = self._is_label if has_classes else _is_number
        taken = getattr(self, "label_columns", ())
        own = "" if taken else self.label
        text, pair, label = columns(self.train, (self.text, self.pair, own), taken, self.quoted, is_label)
        return dataclasses.replace(self, text=text, pair=pair, label=LabeledText.label if taken else label)

    def _is_label(self, values: list[Any]) -> bool:
        """Return whether the values of a column can be labels that are class names."""
        if not values or not all(isinstance(value, (str, int, float)) for value in values):
            return False
        classes = set(map(labels.class_of, values))
        is_short = max(map(len, classes)) <= _LONGEST_NAME
        return is_short and 1 < len(classes) <= max(2, len(values) // _EXAMPLES_A_CLASS)

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        columns = [column for column in (*self.inputs, self.label) if column]
        records = tables.read(path, columns, self.quoted, on_bad)
        # Before types are compared: null beside texts is a missing label and no mixture of types.
        if self.label and self.skip_missing_labels:
            records = self._labeled(records, path, lambda record: labels.is_missing(record[self.label]), "empty or -")
        usual = labels.usual_kind(record[self.label] for record in records) if self.label else ""
        return base.checked(records, functools.partial(self._check, usual=usual), path, on_bad)

    def without_missing(self, records: list[Record], path: str, classes: Collection[str]) -> list[Record]:
        names = set(classes) or self.class_counts(records).keys() - set(labels.NO_GOLD_NUMBERS)
        missing = set(labels.missing_beside(names)) - set(classes)
        if not (self.label and self.skip_missing_labels and missing):
            return records

        def is_missing(record: Record) -> bool:
            return not missing.isdisjoint(self.class_counts([record]))

        what = f"{' or '.join(sorted(missing))}, beside {shorten(labels.ordered(names), 4)}"
        return self._labeled(records, path, is_missing, what)

    def _labeled(
        self, records: list[Record], path: str, is_missing: Callable[[Record], bool], what: str
    ) -> list[Record]:
        """Drop records without a label, and print how many."""
        labeled = [record for record in records if not is_missing(record)]
        if not labeled:
            raise UserError(f"{path} has no label in {self.label!r} in any record; fill them in, or name another file")
        if skipped := len(records) - len(labeled):
            remedy = base.setting_remedy("; examples.skip_missing_labels=False keeps them")
            counted = f"{skipped:,} of {len(records):,} records skipped: no label in {self.label!r} ({what}){remedy}"
            tqdm.write(f"{printable(path)}: {counted}", file=sys.stderr)
        return labeled

    def further_train(self) -> list[Record]:
        """Return the records in `unlabeled`, without labels."""
        if not self.unlabeled:
            return []
        if tables.is_table(self.unlabeled):
            records = tables.read(self.unlabeled, self.inputs, self.quoted)
        elif self.pair:
            remedy = f"name a table with the columns {self.text!r} and {self.pair!r}"
            raise UserError(f"examples.unlabeled={self.unlabeled} has one text a line, and a pair has two; {remedy}")
        else:
            records = tables.read_lines(self.unlabeled, self.text)
        for record in records:
            self._check_texts(record)
        return records

    def _check(self, record: Record, usual: str) -> None:
        self._check_texts(record)
        if self.label:
            self.check_label(record, usual)

    def _check_texts(self, record: Record) -> None:
        for column in self.inputs:
            if not isinstance(record[column], str) or not record[column].strip():
                raise UserError(f"{record[WHERE]} has no text in {column!r}; fill it in or leave the row out")

    def check_label(self, record: Record, usual: str) -> None:
        """Raise UserError unless the label has the usual type."""
        labels.check(record, self.label, usual)

    def class_counts(self, records: list[Record]) -> Counter[str]:
        return Counter(labels.class_of(record[self.label]) for record in records if self.label in record)

    def encode(self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: Classes) -> LabeledExamples:
        first = tokenizer.encode([record[self.text] for record in records])
        second = tokenizer.encode([record[self.pair] for record in records]) if self.pair else None
        whole = whole_lengths(first, second, tokenizer.pair_separators)
        first, second, notes = truncate(first, second, self.longest(seq_len), tokenizer.pair_separators)
        numbers = {self.label_name: self.label_numbers(records, classes)}
        if self.unlabeled:
            numbers[IS_LABELED] = np.array([self.label in record for record in records], np.float32)
        return LabeledExamples(
            ragged=add_special_tokens(first, second, Vocabulary.of(tokenizer), numbers),
            records=records,
            record_of=np.arange(len(records)),
            notes=notes,
            whole_lengths=whole,
        )

    def label_numbers(self, records: list[Record], classes: tuple[str, ...]) -> np.ndarray:
        """Return labels as class indices, int32, or as float32 numbers if there are no classes; 0 if unlabeled.

        Raises:
          UserError: a label is not among the classes, or is not a number although there are no classes.
        """
        places = {name: place for place, name in enumerate(classes)}
        return np.array([self._label(record, places) for record in records], np.int32 if classes else np.float32)

    def _label(self, record: Record, places: Mapping[str, int]) -> int | float:
        if self.label not in record:
            return 0
        label, where = record[self.label], record.get(WHERE, "this record")
        if places:
            if (name := labels.class_of(label)) not in places:
                raise self.unknown(record, f"label {label!r}", list(places))
            return places[name]
        number = labels.number_of(label)
        if math.isnan(number):
            raise UserError(f"{where} has the label {label!r}, which is not a number; correct it or leave the row out")
        return number


# The value of `examples.text` and `examples.label` that asks for a guess.
AUTO = "auto"
# A label column has at least this many rows per class on average.
_EXAMPLES_A_CLASS = 3
# Usual names of the columns of a pair.
_PAIR = ("sentence1", "sentence2")
# No class name is longer.
_LONGEST_NAME = 80
# The border of two words of letters: numbers, dates, codes and addresses of mail have none.
_WORDS = re.compile(r"[^\W\d_]\W{0,4}\s\W{0,4}[^\W\d_]")


def columns(
    path: str, roles: Sequence[str], taken: Collection[str], quoted: bool, is_label: Callable[[list[Any]], bool]
) -> tuple[str, str, str]:
    """Return the columns of text, second text and label in a table, and print them.

    A column that is called `text` or `label` wins. Otherwise the text is the only column whose values are mostly
    different and have several words, or with a second text the first of two (`sentence1` and `sentence2` win), and the
    label is the only one that can be one. If the first line is not a header, because its label is one that other lines
    have too, the columns are numbers.

    Args:
      path: the training file.
      roles: names of the columns of text, second text and label; `AUTO` for those to find, empty for none.
      taken: further columns that are known.
      quoted: see `tables.read`.
      is_label: whether the values of a column can be labels.

    Raises:
      UserError: the file cannot be read or has no rows; or no column or several columns can be the one, and the message
        lists all columns.
    """
    names, rows = tables.preview(path, quoted)
    base.not_empty(rows, path, "rows")
    # pandas writes an index as a column without a name.
    values = {name: [row[name] for row in rows if not labels.is_missing(row.get(name))] for name in names if name}
    text, pair, label = roles
    free = [name for name in values if name not in (*taken, *({*roles} - {AUTO}))]
    if label == AUTO:
        label = _only("label", [name for name in free if is_label(values[name])], values, path)
    if pair == AUTO:
        texts = [name for name in _PAIR if text == AUTO and name in values]
        if len(texts) < 2:
            texts = [text] * (text != AUTO) + [name for name in free if name != label and _is_text(values[name])]
        if len(texts) != 2:
            remedy = "set examples.text=COLUMN and examples.pair=COLUMN"
            raise UserError(f"{path} has the columns {_described(values)}, and not two of texts; {remedy}")
        text, pair = texts
    if text == AUTO:
        text = _only("text", [name for name in free if name != label and _is_text(values[name])], values, path)
    is_numbered = any(name.isdecimal() and name not in names for name in (text, label))
    is_class = label in values and labels.class_of(label) in set(map(labels.class_of, values[label]))
    is_class = is_class and not json_objects.holds_objects(path)
    # A first line such as `text,spam` names the columns, although `spam` is one of the classes.
    has_one_word = _WORDS.search(text) is None
    if is_class and has_one_word and not is_numbered:
        taken = f"its first line, {text!r} and {label!r}, is taken for the names of columns"
        numbers = f"set examples.text={names.index(text)} and examples.label={names.index(label)}"
        say(f"{path}: {taken}; if it is an example, {numbers}", file=sys.stderr)
    if is_numbered or (is_class and not has_one_word):
        text, label = (str(names.index(name)) if name in values else name for name in (text, label))
        say(f"{path}: its first line is an example and not the names of columns", file=sys.stderr)
    found = f"{f', that of the second {pair!r}' * bool(pair)}{f', that of the label {label!r}' * bool(label)}"
    say(f"{path}: the column of the text is {text!r}{found}", file=sys.stderr)
    return text, pair, label


def _only(role: str, candidates: Sequence[str], values: dict[str, list[Any]], path: str) -> str:
    """Return the only candidate for a role, or the column that is called like it."""
    if role in values:
        return role
    if len(candidates) == 1:
        return candidates[0]
    which = f"{' and '.join(map(repr, candidates))} may each be" if candidates else "none looks like"
    remedy = f"set examples.{role}={candidates[0] if candidates else 'COLUMN'}"
    raise UserError(f"{path} has the columns {_described(values)}; {which} the {role}: {remedy}")


def _described(values: dict[str, list[Any]]) -> str:
    counts = {name: f"{len(set(map(labels.class_of, column))):,} values" for name, column in values.items()}
    return shorten([f"{name!r} ({'text' if _is_text(values[name]) else count})" for name, count in counts.items()], 12)


def _is_number(values: list[Any]) -> bool:
    """Return whether the values of a column can be scores: different numbers, and not those of the rows."""
    numbers = [labels.number_of(value) if isinstance(value, (str, int, float)) else math.nan for value in values]
    are_ids = len(set(numbers)) == len(numbers) and all(map(float.is_integer, numbers))
    return len(set(numbers)) > 1 and not any(map(math.isnan, numbers)) and not are_ids


def _is_text(values: list[Any]) -> bool:
    if not values or not all(isinstance(value, str) for value in values):
        return False
    are_words = sum(bool(_WORDS.search(value)) or has_unspaced(value) for value in values)
    return 2 * len(set(values)) > len(values) and 2 * are_words > len(values)


# The label of a record with an empty list of classes.
NO_CLASS = "no class"


def conflicts_of(records: Iterable[Record], format: LabeledText) -> list[tuple[str, list[str]]]:
    """Return (text, its labels) for each text that occurs with different labels, in the order of the records.

    Texts are equal as in `split.divide`: in any case, with any white space. Labels are class names; a record with
    several has them joined by commas, one to which no class applies has "no class". Unlabeled records are left out.
    """
    first: dict[str, str] = {}
    labels: dict[str, dict[str, None]] = {}
    for record in records:
        if format.label in record:
            classes = format.class_counts([record])
            key = text_key(texts := format.texts_of(record))
            first.setdefault(key, "\n".join(texts))
            labels.setdefault(key, {})[", ".join(sorted(classes)) or NO_CLASS] = None
    return [(first[key], list(each)) for key, each in labels.items() if len(each) > 1]
