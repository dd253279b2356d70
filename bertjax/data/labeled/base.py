"""Base class for labeled formats: a file is parsed into records, and records are encoded into in-memory examples."""

import contextlib
import contextvars
import dataclasses
import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from tqdm import tqdm

from bertjax.data.config import ON_BAD
from bertjax.data.examples import Ragged, Vocabulary, add_special_tokens
from bertjax.data.formats import ExampleFormat
from bertjax.data.framing import truncate, whole_lengths
from bertjax.data.sources.base import BadRecords, OnBad, read_each
from bertjax.data.tokenizer import Tokenizer
from bertjax.runtime.errors import UserError, printable, shorten
from bertjax.runtime.setting import OF_RECORDS, PLACE, TRAINING_ONLY, setting

# One task input (a sentence, a pair, a question) as plain JSON, with its label if known.
Record = dict[str, Any]
# Class names by index; empty if labels are numbers.
Classes = tuple[str, ...]
# Added to every record for error messages: where it was read, as `file:line`.
WHERE = "_where"
# Keys under which answers and reports are added to a record. A column of this name would be overwritten, or overwrite.
ANSWERS = frozenset("prediction probabilities accepted cosine suggested label_probability".split())
_OF_FOLDS = frozenset(("fold", "line"))


def line_of(record: Record) -> int:
    """Return the number of the line, or of the object of a JSON array, that a record with its place was read from."""
    return int(record[WHERE].rpartition(":")[2].rpartition(" ")[2])


# Every run has these two files.
SPLITS = ("train", "heldout")


@dataclasses.dataclass(frozen=True)
class LabeledExamples:
    """`Examples` held in memory.

    Attributes:
      ragged: the M examples, with ids 0..M-1.
      records: the source records.
      record_of: int64 [M], record index per example; a long record may give several examples (windows).
      group: number of consecutive examples that must share a batch row, such as the choices for one question.
      notes: {event: count} to report, such as truncated texts.
      whole_lengths: int64 [M], tokens per example before texts were cut; None if the format cuts none.
    """

    ragged: Ragged
    records: list[Record]
    record_of: np.ndarray
    group: int = 1
    notes: dict[str, int] = dataclasses.field(default_factory=dict)
    whole_lengths: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ragged.ids)

    def lengths(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return token counts for the examples `start:stop`; int32."""
        return self.ragged.lengths[start:stop].astype(np.int32)

    def take(self, indices: np.ndarray) -> Ragged:
        """Return the examples at `indices` (int64 [M]), in that order."""
        return self.ragged.take(indices)


@dataclasses.dataclass(frozen=True)
class LabeledFormat(ExampleFormat):
    """Turns labeled files into examples; subclass fields are settings.

    Attributes:
      train: the training file.
      heldout: the file to score, such as a development set; or the share of the training file to hold out instead
        (`bertjax.data.labeled.split`), if the format can be divided.
      further_heldout: {name: file}, more files to score; their metrics are `eval/<name>/<metric>`. Only `heldout`
        selects the best checkpoint.
      limit: number of training records to use, a stratified random sample (`bertjax.data.labeled.split`); 0 for all.
      limit_seed: seed for that sample and for a held-out share. It is independent of the run's seed, so all seeds train
        on the same records.
      on_bad_record: `stop` or `skip` (and count) records that lack a column, have an empty text or do not fit the
        format.
      list_input: field with a list of texts, such as words, that may replace `inputs` in a record to predict; empty
        if there is none.
      folds: number of parts of the training file. `bertjax.train` starts a run for each, on two files of its own; 0 for
        one run.
      is_divisible: whether a share of the training file may be held out.
    """

    train: str = setting("", metadata=PLACE | TRAINING_ONLY)
    heldout: str | float = setting("", metadata=PLACE)
    further_heldout: dict[str, str] = dataclasses.field(default_factory=dict, kw_only=True, metadata=PLACE)
    limit: int = setting(0, least=0, hint="0 takes all records", metadata=TRAINING_ONLY)
    # Columns that hold text: all that `encode` needs from an unlabeled record.
    inputs: ClassVar[Any] = ()
    list_input: ClassVar[str] = ""
    limit_seed: int = setting(0, kw_only=True, metadata=OF_RECORDS | TRAINING_ONLY)
    on_bad_record: str = setting("stop", choices=ON_BAD, metadata=OF_RECORDS | TRAINING_ONLY)
    folds: int = setting(0, kw_only=True, metadata=OF_RECORDS | TRAINING_ONLY)
    is_divisible: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        is_share = isinstance(self.heldout, float)
        if (is_share or self.folds) and not self.is_divisible:
            what = f"examples.heldout={self.heldout}" if is_share else f"examples.folds={self.folds}"
            remedy = "name a file in examples.heldout, and set examples.folds=0"
            raise UserError(f"{what} divides the training file, which examples.kind={self.kind} does not do; {remedy}")
        if is_share and not 0.0 < self.heldout < 1.0:
            remedy = "name the training file itself to hold out nothing"
            raise UserError(f"examples.heldout={self.heldout} must be a file, or a share between 0 and 1; {remedy}")
        if self.folds < 0 or self.folds == 1:
            raise UserError(f"examples.folds={self.folds} must be 2 or more, such as 5, or 0 for one run")
        for name in self.further_heldout:
            if name in SPLITS or not re.fullmatch(r"[\w-]+", name):
                remedy = f"use letters, digits, - and _, and not {' or '.join(SPLITS)}"
                raise UserError(f"examples.further_heldout has the name {name!r}; {remedy}")

    def index_of(self, name: str, places: Mapping[str, int], record: Record, what: str) -> int:
        """Return the index of a class.

        Args:
          name: the class.
          places: {class: index}.
          record: the record that has it.
          what: the label as the file has it, for the error message.

        Raises:
          UserError: it is not among the classes.
        """
        if name not in places:
            limit = f" in the {self.limit} records that examples.limit takes" if self.limit else ""
            known = f"the training file lacks{limit} ({shorten(list(places), 8)})"
            where = record.get(WHERE, "this record")
            raise UserError(f"{where} has the {what}, which {known}; correct it or that file")
        return places[name]

    def texts_of(self, record: Record) -> list[str]:
        """Return a record's texts; empty if they are not in the columns `inputs`."""
        return [record[name] for name in self.inputs if name in record]

    def with_columns(self, columns: Mapping[str, str | int]) -> Self:
        """Return a copy that reads a file with other columns.

        Args:
          columns: {setting: column}, from the flags of a command.

        Raises:
          UserError: the format has no such setting.
        """
        settings = {field.name for field in dataclasses.fields(self)}
        for name, column in columns.items():
            if name not in settings:
                flag = name.replace("_", "-")
                raise UserError(f"--{flag}={column} has no effect on a model of examples.kind={self.kind}; remove it")
        return dataclasses.replace(self, **columns)

    def read_unlabeled(self, path: str, classes: Collection[str]) -> list[Record] | None:
        """Read records to predict from a file in the training file's format; None if it is a table or plain text.

        Args:
          path: file to read.
          classes: the model's classes.

        Raises:
          UserError: the file cannot be read, or a record is bad.
        """
        return None

    def with_answers(self, path: str, answers: Iterator[Any], classes: Collection[str]) -> Iterator[str] | None:
        """Yield a file's lines with the answers filled in; None if the file format has no place for answers.

        Args:
          path: a file that `read_unlabeled` accepts.
          answers: model answers, in file order.
          classes: the model's classes.
        """
        return None

    def read(self, path: str) -> list[Record]:
        """Read a file; `on_bad_record="skip"` drops bad records and reports their number.

        Raises:
          UserError: the file cannot be read, a record is bad (the message names the line), or a column has the name of
            an answer.
        """
        if not path:
            share = ", or hold out a share of the first: examples.heldout=0.2" if self.is_divisible else ""
            raise UserError(f"examples.train or examples.heldout is empty; name a file or folder for each{share}")
        bad = BadRecords(self.on_bad_record, "records", setting_remedy(", or set examples.on_bad_record=skip"))
        records = self.parse(path, functools.partial(bad.add, path))
        if taken := sorted((ANSWERS | (_OF_FOLDS if self.folds else set())) & records[0].keys()):
            raise UserError(f"{path} has the column {taken[0]!r}, under which bertjax writes its answers; rename it")
        if skipped := bad.skipped.get(path):
            counted = f"{skipped:,} of {skipped + len(records):,} records skipped"
            tqdm.write(f"{printable(path)}: {counted} (examples.on_bad_record=skip)", file=sys.stderr)
        return records

    def parse(self, path: str, on_bad: OnBad) -> list[Record]:
        """Parse a file into records.

        Args:
          path: file to parse.
          on_bad: called with each bad record's error; if it returns, the record is dropped.

        Raises:
          UserError: the file cannot be read, or no record is left.
        """
        raise TypeError(f"{type(self).__name__} has no parse()")

    def located(self, has_classes: bool = True) -> Self:
        """Return a copy with the columns that settings leave to the training file.

        Args:
          has_classes: whether labels are class names rather than numbers.

        Raises:
          UserError: the file cannot be read, or several columns are possible.
        """
        return self

    def resolved(self, records: list[Record]) -> Self:
        """Return a copy with the settings that depend on the training records filled in."""
        return self

    def without_missing(self, records: list[Record], path: str, classes: Collection[str]) -> list[Record]:
        """Drop records whose label means "none" in the context of the other labels, and print how many.

        A label such as -1 is ambiguous alone: it is a missing label only beside classes 0, 1, 2, ...

        Args:
          records: records from one file.
          path: the file, for the message.
          classes: class names in the training file; empty if this is the training file.
        """
        return records

    def further_train(self) -> list[Record]:
        """Return extra unlabeled training records; `limit` does not apply to them."""
        return []

    def class_counts(self, records: list[Record]) -> Counter[str]:
        """Count labels by class name; empty if labels are not class names."""
        return Counter()

    def group_of(self, records: list[Record], classes: tuple[str, ...]) -> int:
        """Return how many examples must share a row because they are compared, such as all choices for a question.

        Args:
          records, classes: see `encode`.
        """
        return 1

    def encode(self, records: list[Record], tokenizer: Tokenizer, seq_len: int, classes: Classes) -> LabeledExamples:
        """Encode records into examples of at most `longest(T)` tokens.

        Args:
          records: records to encode; without labels, example labels are placeholders.
          tokenizer: the model's tokenizer.
          seq_len: row length T.
          classes: class names by index; empty if labels are numbers.

        Raises:
          UserError: a label is not among the classes, or is not a number although there are no classes.
        """
        raise TypeError(f"{type(self).__name__} has no encode()")


def usable(records: Iterable[Record], check: Callable[[Record], Record], path: str, on_bad: OnBad) -> list[Record]:
    """Return what `check` returns for each record; its errors go to `on_bad`.

    Raises:
      UserError: no record is left.
    """
    return not_empty(read_each(records, check, on_bad), path, "record that can be used")


def check_texts(record: Record, columns: Iterable[str]) -> None:
    """Raise UserError unless these columns of a record hold texts that are not blank."""
    for column in columns:
        if not isinstance(record[column], str) or not record[column].strip():
            raise UserError(f"{record.get(WHERE, 'this record')} has no text in {column!r}; fill it in or leave it out")


def not_empty(records: Iterable[Record], path: str, what: str) -> list[Record]:
    """Return the records of a file as a list.

    Raises:
      UserError: there are none; the message names `what` is missing.
    """
    if not (listed := list(records)):
        raise UserError(f"{path} has no {what}; give a file with at least one")
    return listed


def by_record(examples: Ragged, records: list[Record]) -> list[tuple[Record, list[int]]]:
    """Group examples (windows) by record: return (record, example indices sorted by id) pairs.

    Args:
      examples: M examples.
      records: one record per example.
    """
    groups: dict[int, tuple[Record, list[int]]] = {}
    for index in np.argsort(examples.ids, kind="stable").tolist():
        record = records[index]
        # Records are dicts, which cannot be hashed, and equal records must stay separate.
        groups.setdefault(id(record), (record, []))[1].append(index)
    return list(groups.values())


# Remedies in messages: a setting in a run, a flag in a command that reads a file of its own. Readers of files know
# neither. A command wraps its reading in `in_command`, so that messages name no setting that it does not have.
_IS_COMMAND: contextvars.ContextVar[bool] = contextvars.ContextVar("command", default=False)


@contextlib.contextmanager
def in_command() -> Iterator[None]:
    """Within this context, messages name flags instead of settings."""
    token = _IS_COMMAND.set(True)
    try:
        yield
    finally:
        _IS_COMMAND.reset(token)


def setting_remedy(remedy: str, in_command: str = "") -> str:
    """Return a remedy that sets something in the configuration, or the one that a command has in its place."""
    return in_command if _IS_COMMAND.get() else remedy


def encoded(
    first: list[str],
    second: list[str] | None,
    labels: dict[str, np.ndarray],
    records: list[Record],
    tokenizer: Tokenizer,
    longest: int,
) -> LabeledExamples:
    """Encode texts or pairs of texts, cut to at most `longest` tokens each.

    Args:
      first: texts of all records, as many for each; they share a row.
      second: their second texts; None for single texts.
      labels: {name: labels}, an array with one entry per text.
      records: the records.
      tokenizer: the model's tokenizer.
      longest: maximum example length.
    """
    # Texts repeat, such as the context of several choices, and each is tokenized once.
    distinct = list(dict.fromkeys([*first, *(second or ())]))
    ids_of = dict(zip(distinct, tokenizer.encode(distinct)))
    ids = [ids_of[text] for text in first]
    second_ids = None if second is None else [ids_of[text] for text in second]
    whole = whole_lengths(ids, second_ids, tokenizer.pair_separators)
    ids, second_ids, notes = truncate(ids, second_ids, longest, tokenizer.pair_separators)
    group = len(first) // len(records) if records else 1
    return LabeledExamples(
        ragged=add_special_tokens(ids, second_ids, Vocabulary.of(tokenizer), labels),
        records=records,
        record_of=np.repeat(np.arange(len(records)), group),
        group=group,
        notes=notes,
        whole_lengths=whole,
    )
