"""Sentences and sentence pairs with one label each, as in GLUE (Wang et al., 2019, arXiv 1804.07461).

A pair is one example, or for sentence embeddings two examples that are encoded separately.

If equal texts have different labels, at least one of the labels is wrong, or the text does not decide it.
"""

import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from tqdm import tqdm

from bertjax.data.labeled import base, columns, labels, tables
from bertjax.data.labeled.base import WHERE, Classes, LabeledExamples, LabeledFormat, Record
from bertjax.data.labeled.split import text_key
from bertjax.data.sources.base import OnBad
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError, printable, shorten
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
        if columns.AUTO not in (self.text, self.pair, self.label) or not self.train:
            return self
        taken = getattr(self, "label_columns", ())
        roles = {"text": self.text, "pair": self.pair, "label": "" if taken else self.label}
        is_label = self.is_label_column if has_classes else columns.are_scores
        found = columns.settle(self.train, roles, taken, self.quoted, is_label)
        return dataclasses.replace(self, **found | ({"label": LabeledText.label} if taken else {}))

    def is_label_column(self, values: list[Any]) -> bool:
        """Return whether the values of a column can be labels that are class names."""
        return columns.are_class_names(values)

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        names = [column for column in (*self.inputs, self.label) if column]
        records = tables.read(path, names, self.quoted, on_bad)
        # Before types are compared: null beside texts is a missing label and no mixture of types.
        if self.label and self.skip_missing_labels:
            records = self._labeled(records, path, lambda record: labels.is_missing(record[self.label]), "empty or -")
        usual = labels.usual_kind(record[self.label] for record in records) if self.label else ""

        def check(record: Record) -> Record:
            base.check_texts(record, self.inputs)
            if self.label:
                labels.check(record, self.label, usual)
            return record

        return base.usable(records, check, path, on_bad)

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
            base.check_texts(record, self.inputs)
        return records

    def class_counts(self, records: list[Record]) -> Counter[str]:
        return Counter(labels.class_of(record[self.label]) for record in records if self.label in record)

    def encode(self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: Classes) -> LabeledExamples:
        numbers = {self.label_name: self.label_numbers(records, classes)}
        if self.unlabeled:
            numbers[IS_LABELED] = np.array([self.label in record for record in records], np.float32)
        first = [record[self.text] for record in records]
        second = [record[self.pair] for record in records] if self.pair else None
        return base.encoded(first, second, numbers, records, tokenizer, self.longest(seq_len))

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
            return self.index_of(labels.class_of(label), places, record, f"label {label!r}")
        number = labels.number_of(label)
        if math.isnan(number):
            raise UserError(f"{where} has the label {label!r}, which is not a number; correct it or leave the row out")
        return number


@dataclasses.dataclass(frozen=True)
class SiamesePairs(LabeledText):
    """A table with one pair per row: two examples, `[CLS] text [SEP]` and `[CLS] pair [SEP]`, in one batch row.

    (Reimers & Gurevych, 2019, section 3.)

    Labels: `side`, 0 for the first text and 1 for the second; `pair_label`, the pair's label on both examples, if there
    is a label column. An example takes at most half a row.

    Attributes:
      text, pair: columns with the two texts.
    """

    kind: str = dataclasses.field(init=False, default="siamese_pairs")
    text: str = setting("sentence1", filled="name the column of the text", metadata=OF_INPUT)
    pair: str = setting("sentence2", filled="name the column of the second text", metadata=OF_INPUT)

    @property
    def labels(self) -> tuple[str, ...]:
        return ("side", "pair_label") if self.label else ("side",)

    def longest(self, seq_len: int) -> int:
        return min(self.max_tokens or seq_len, seq_len // 2)

    def group_of(self, records: list[Record], classes: tuple[str, ...]) -> int:
        return 2

    def encode(self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: Classes) -> LabeledExamples:
        # Examples alternate: the text and the pair of each record.
        texts = [record[column] for record in records for column in self.inputs]
        numbers = {"side": np.tile(np.arange(2, dtype=np.int32), len(records))}
        if self.label:
            numbers["pair_label"] = np.repeat(self.label_numbers(records, classes), 2)
        return base.encoded(texts, None, numbers, records, tokenizer, self.longest(seq_len))


@dataclasses.dataclass(frozen=True)
class RepeatedText(SiamesePairs):
    """Duplicates each training text into two equal examples; the held-out file has scored pairs.

    This is unsupervised SimCSE (Gao et al., 2021, arXiv 2104.08821).

    The training file is a .txt with one text per line, or a table with the column `text`. If `label` is empty, the
    held-out file has the same form. Labels are as in `siamese_pairs`; training examples get 0.

    Attributes:
      text: column with the texts, and with the first text of held-out pairs.
      pair: column with the second text of held-out pairs.
      label: column with the scores of held-out pairs; empty if there are none.
    """

    kind: str = dataclasses.field(init=False, default="repeated_text")
    label: str = "score"
    is_divisible: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        if self.label and self.train and self.train == self.heldout:
            remedy = "name a file of pairs with scores, or set examples.label='' to evaluate the loss on texts"
            raise UserError(f"examples.train and examples.heldout are both {self.train}; {remedy}")

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        if self.label and path != self.train:
            return super().parse(path, on_bad)
        if tables.kind_of(path) == ".txt":
            return tables.read_lines(path, self.text, on_bad)
        return LabeledText(text=self.text, label="", quoted=self.quoted).parse(path, on_bad)

    def class_counts(self, records: list[Record]) -> Counter[str]:
        return Counter()

    def encode(self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: Classes) -> LabeledExamples:
        # A training record has no second text, so it becomes its own pair. Held-out pairs keep theirs.
        pairs = [{self.pair: record[self.text]} | record for record in records]
        return dataclasses.replace(super().encode(pairs, tokenizer, seq_len, classes), records=records)


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
