"""Multiple choice: select the correct ending or answer, from tables (SWAG) or the files of reading exams (RACE)."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from etils import epath

from bertjax.data.examples import Vocabulary, add_special_tokens
from bertjax.data.framing import special_tokens, truncate, whole_lengths
from bertjax.data.labeled import json_objects, labels, tables
from bertjax.data.labeled.base import WHERE, Classes, LabeledExamples, LabeledFormat, Record, checked, not_empty
from bertjax.data.sources.base import OnBad, check_surrogates, json_of, read_each
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
            raise UserError(f"{where} has {len(choices)} choices, others have {count}; give all the same number")
        label = record.get(self.label, 0)
        if labels.class_of(label) not in map(str, range(count)):
            raise UserError(f"{where} has the label {label!r}; write the number of the right choice, 0 to {count - 1}")


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
        return checked(records, functools.partial(self.check, count=count), path, on_bad)

    def check(self, record: Record, count: int) -> None:
        """Check the base class's conditions, and that no text is missing."""
        where, choices = record.get(WHERE, "this record"), self.choices_of(record)
        if len(choices) < 2:
            remedy = "set examples.choices to two or more columns, or to the field of a .jsonl with a list"
            raise UserError(f"{where} has {len(choices)} choice; {remedy}")
        shared = [record[column] for column in self.shared]
        choice_columns = self.choices if len(self.choices) > 1 else self.choices * len(choices)
        for name, text in zip((*self.shared, *choice_columns), [*shared, *choices], strict=True):
            if not isinstance(text, str) or not text.strip():
                raise UserError(f"{where} has no text in {name!r}; fill it in or leave the row out")
        super().check(record, count)


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
        return not_empty(records, path, "questions in .txt files, as RACE/train and RACE/dev/high have")

    def second_segments(self, record: Record) -> list[str]:
        question, choices = record[self.question], self.choices_of(record)
        # Cloze questions have a blank; the others are real questions.
        if _BLANK in question:
            return [question.replace(_BLANK, choice) for choice in choices]
        return [f"{question} {choice}" for choice in choices]


def _questions(file: epath.Path, on_bad: OnBad) -> Iterator[Record]:
    """Yield a file's questions; each file is a JSON object with one article."""
    try:
        article, *lists = _exam(file)
    except UserError as error:
        on_bad(error)
        return
    # Question n, its options and its answer have the same place in the three lists.
    yield from read_each(enumerate(zip(*lists)), lambda item: _question(article, item[0], *item[1], str(file)), on_bad)


def _question(article: str, number: int, question: Any, options: Any, answer: Any, file: str) -> Record:
    if not isinstance(question, str):
        raise UserError(f"{file}: questions[{number}] is {question!r}, not a text; correct it")
    if not isinstance(options, list) or [type(option) for option in options] != [str] * len(LETTERS):
        raise UserError(f"{file}: options[{number}] must be a list of {len(LETTERS)} texts; correct it")
    if answer not in LETTERS:
        raise UserError(f"{file}: answers[{number}] is {answer!r}; write one of {', '.join(LETTERS)}")
    where, choices = f"{file}: questions[{number}]", dict(zip(LETTERS, options))
    check_surrogates(" ".join([question, *options]), where)
    return {"article": article, "question": question, **choices, "answer": LETTERS.index(answer), WHERE: where}


def _exam(file: epath.Path) -> tuple[str, list, list, list]:
    """Return a file's article, questions, options and answers."""
    whole = json_of(json_objects.content_of(str(file)), str(file))
    if not isinstance(whole, dict):
        raise UserError(f"{file} is not a JSON object with an article and its questions; correct or remove the file")
    article = whole.get("article")
    if not isinstance(article, str) or not article.strip():
        raise UserError(f"{file} has no text in 'article'; fill it in or remove the file")
    check_surrogates(article, f"{file}: article")
    lists = [whole.get(name) for name in ("questions", "options", "answers")]
    if not all(isinstance(entries, list) for entries in lists) or len(set(map(len, lists))) > 1:
        raise UserError(f"{file} must have lists 'questions', 'options' and 'answers' of one length; correct it")
    return article, *lists
