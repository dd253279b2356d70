"""Multiple choice: select the correct ending or answer, from tables (SWAG) or the files of reading exams (RACE)."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from etils import epath

from bertjax.data.framing import special_tokens
from bertjax.data.labeled import base, labels, tables
from bertjax.data.labeled.base import WHERE, Classes, LabeledExamples, LabeledFormat, Record
from bertjax.data.sources.base import OnBad, check_surrogates, read_each
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import OF_INPUT, setting
from bertjax.runtime.storage import place_of

_COLUMN = "name a column"


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

    def encode(self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: Classes) -> LabeledExamples:
        count = self.group_of(records, classes)
        longest = min(self.longest(seq_len), seq_len // count)
        if longest < special_tokens(2, tokenizer.pair_separators) + 2:  # one token per segment
            remedy = "raise stages.0.seq_len or examples.max_tokens"
            raise UserError(f"a row of {seq_len} tokens leaves {longest} for each of {count} choices; {remedy}")
        for record in records:
            self.check(record, count)
        first = [record[self.context] for record in records for _ in range(count)]
        second = [text for record in records for text in self.second_segments(record)]
        numbers = np.array([int(labels.class_of(record.get(self.label, 0))) for record in records], np.int32)
        return base.encoded(first, second, {"choice": np.repeat(numbers, count)}, records, tokenizer, longest)

    def second_segments(self, record: Record) -> list[str]:
        """Return the second segment (question and choice) for each choice."""
        question = [record[self.question]] if self.question else []
        return [" ".join([*question, choice]) for choice in self.choices_of(record)]

    def choices_of(self, record: Record) -> list[str]:
        """Return the choice texts, from separate columns or from one list-valued column."""
        values = [record[column] for column in self.choices]
        return values[0] if len(values) == 1 and isinstance(values[0], list) else values

    def check(self, record: Record, count: int) -> Record:
        """Return the record; raise UserError unless it has `count` choices and its label is the index of one."""
        where, choices = record.get(WHERE, "this record"), self.choices_of(record)
        if len(choices) != count or count < 2:
            remedy = "give all the same number, at least 2, in columns of their own or in a list"
            raise UserError(f"{where} has {len(choices)} choices, and most records have {count}; {remedy}")
        label = record.get(self.label, 0)
        if labels.class_of(label) not in map(str, range(count)):
            raise UserError(f"{where} has the label {label!r}; write the number of the right choice, 0 to {count - 1}")
        return record


@dataclasses.dataclass(frozen=True)
class Choices(ChoiceFormat):
    """A table with one multiple-choice record per row, as in SWAG (Zellers et al., 2018, arXiv 1808.05326).

    Attributes:
      context: column with the text common to all choices, by name, or by number if the .tsv or .csv has no header.
      question: column with text to put before each choice (a question, or the beginning of all endings); empty for
        none.
      choices: one column per choice, or a single .jsonl field that lists them.
      label: column with the index of the correct choice, from 0.
      quoted: whether .tsv fields may be in double quotes.
    """

    kind: str = dataclasses.field(init=False, default="choices")
    context: str = setting("context", filled=_COLUMN, metadata=OF_INPUT)
    question: str = setting("", metadata=OF_INPUT)
    choices: tuple[str, ...] = setting(("choices",), filled=_COLUMN)
    label: str = setting("label", filled=_COLUMN)
    quoted: bool = setting(False, metadata=OF_INPUT)

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        records = tables.read(path, [*self.shared, *self.choices, self.label], self.quoted, on_bad)
        [(count, _)] = Counter(len(self.choices_of(record)) for record in records).most_common(1)
        return base.usable(records, functools.partial(self.check, count=count), path, on_bad)

    def check(self, record: Record, count: int) -> Record:
        """Check the base class's conditions, and that no text is missing."""
        super().check(record, count)
        [column, *others] = self.choices
        base.check_texts(record, (*self.shared, *others))
        for text in [record[column]] if others else self.choices_of(record):
            base.check_texts(record | {column: text}, (column,))
        return record


LETTERS = ("A", "B", "C", "D")
_BLANK = "_"


@dataclasses.dataclass(frozen=True)
class Race(ChoiceFormat):
    """RACE in its original files (Lai et al., 2017, arXiv 1704.04683): four choices per question.

    A question is a record {`article`, `question`, `A`, `B`, `C`, `D`, `answer`}; `answer` is 0 to 3.

    `train` and `heldout` are folders. All .txt files in them and in their subfolders (`RACE/train` has `middle` and
    `high`) are read in path order. The first segment is the article. The second is the question and a choice, or the
    question with the choice filled into its blank `_`, as in `race_utils.py` of google-research/albert.
    """

    kind: str = dataclasses.field(init=False, default="race")
    context: ClassVar[str] = "article"
    question: ClassVar[str] = "question"
    choices: ClassVar[tuple[str, ...]] = LETTERS
    label: ClassVar[str] = "answer"

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        folder = place_of(path)
        files = sorted([*folder.glob("*.txt"), *folder.glob("*/*.txt")])
        records = (record for file in files if not file.name.startswith(".") for record in _questions(file, on_bad))
        return base.not_empty(records, path, "questions in .txt files, as RACE/train and RACE/dev/high have")

    def second_segments(self, record: Record) -> list[str]:
        question, choices = record[self.question], self.choices_of(record)
        # Cloze questions have a blank; the others are real questions.
        if _BLANK in question:
            return [question.replace(_BLANK, choice) for choice in choices]
        return [f"{question} {choice}" for choice in choices]


def _questions(file: epath.Path, on_bad: OnBad) -> Iterator[Record]:
    """Yield a file's questions; each file is a JSON object with one article."""
    path, form = str(file), "write a JSON object with an article, and with questions, options and answers of one length"
    try:
        whole = tables.value_of(path)
        article = tables.member(whole, "article", str, path, form)
        lists = [tables.member(whole, name, list, path, form) for name in ("questions", "options", "answers")]
        if len(set(map(len, lists))) > 1:
            raise UserError(f"{path} has {', '.join(map(str, map(len, lists)))} of them; {form}")
    except UserError as error:
        on_bad(error)
        return
    # Question n, its options and its answer have the same place in the three lists.
    items = ((f"{path}: questions[{number}]", *parts) for number, parts in enumerate(zip(*lists)))
    yield from read_each(items, lambda item: {"article": article} | _question(*item), on_bad)


def _question(where: str, question: Any, options: Any, answer: Any) -> Record:
    texts = [question, *options] if isinstance(options, list) else []
    if [type(text) for text in texts] != [str] * (1 + len(LETTERS)) or answer not in LETTERS:
        parts = f"a text, {len(LETTERS)} options that are texts, and an answer of {', '.join(LETTERS)}"
        raise UserError(f"{where} is {str((question, options, answer))[:80]}; give it {parts}")
    check_surrogates(" ".join(texts), where)
    return {"question": question, **dict(zip(LETTERS, options)), "answer": LETTERS.index(answer), WHERE: where}
