"""Records to predict, from a list of texts, a file or a stream, with the place of each, and answers as text."""

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from bertjax.data.labeled import tables
from bertjax.data.labeled.base import WHERE, Classes, LabeledFormat, Record, in_command
from bertjax.data.labeled.labels import with_names_of
from bertjax.data.sources.base import check_surrogates, text_of
from bertjax.data.sources.records import BYTE_ORDER_MARK, numbered_lines
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError, csv_line, json_text, printable, say

# What a command adds to the number of texts that were cut.
CUT_FEWER = "; a larger stages.0.seq_len in training cuts fewer"
# Names of files for predictions: lines of JSON, and columns. A device or a pipe has no suffix, and gets lines of JSON.
COLUMNS, ARRAY = ".csv", ".npy"
FORMS = (".jsonl", ".json", COLUMNS)
# Names that promise something else than lines of text.
_NOT_LINES = (*FORMS, ARRAY, ".gz", ".bz2", ".xz", ".zst", ".zip", ".xlsx", ".parquet")
# The column of the probability of the prediction.
_PROBABILITY = "probability"


def records_of(texts: Sequence[str], field: str = "text") -> list[Record]:
    """Return texts as records with one field.

    Raises:
      UserError: a text is blank or not a string.
    """
    if isinstance(texts, str):
        raise UserError(f"{texts[:40]!r} is one text; give a list of texts")
    return checked([{field: text} for text in texts], (field,))


def checked(records: Sequence[Record], fields: Sequence[str], list_field: str = "") -> list[Record]:
    """Return records with their numbers, from 1, as places.

    Args:
      records: the records.
      fields: required fields, each with a text.
      list_field: a field with a list of texts that a record may have in place of these; empty for none.

    Raises:
      UserError: a record lacks a field, or the field is blank or not a string.
    """
    return [_checked(record, f"text {number}", fields, list_field) for number, record in enumerate(records, start=1)]


def read_lines(lines: Iterable[bytes], name: str, field: str) -> list[Record]:
    """Return one record per line.

    Args:
      lines: UTF-8 lines with line ends.
      name: file name, for messages.
      field: record field that holds the text.

    Raises:
      UserError: a line is blank or not UTF-8.
    """
    return [{field: text_of(line, where), WHERE: where} for where, line in _numbered(lines, name)]


def read_file(path: str, fields: Sequence[str], quoted: bool = False) -> list[Record]:
    """Return the records in a file: the rows of a table (.csv, .tsv, .jsonl, .json), or the lines of any other file.

    A file may be compressed (.gz, .zst, .xz). Records keep all columns of a table. With `quoted`, fields in a .tsv file
    may be in double quotes.

    Raises:
      UserError: the file cannot be read, has a bad line, or has plain lines although a record has several fields.
    """
    full = os.path.expanduser(path)  # `Path` would take one slash of a URL
    # JSON lines may end in .ndjson too, and a model must not read their braces as text.
    if tables.is_table(full):
        rows = tables.read(full, fields, quoted, all_columns=True)
        for record in rows:  # all fields are written with the prediction
            check_surrogates(json.dumps(record, ensure_ascii=False), record[WHERE])
        _check_no_blanks(rows, fields)
        return [_checked(record, record[WHERE], fields) for record in rows]
    lines = (line for _, line in numbered_lines(full))
    return read_lines(lines, path, single_field(fields))


def read_inputs(examples: LabeledFormat, path: str, classes: Sequence[str] = ()) -> list[Record]:
    """Return the records of a file to predict.

    Args:
      examples: the format that the model was trained on, with the columns of the file.
      path: a file of this format, or see `read_file`.
      classes: the model's classes.

    Raises:
      UserError: the file cannot be read, or has a bad record.
    """
    with in_command():
        records = examples.read_unlabeled(os.path.expanduser(path), classes)
        return read_file(path, examples.inputs, getattr(examples, "quoted", False)) if records is None else records


def read_labeled(examples: LabeledFormat, path: str, classes: Classes) -> list[Record]:
    """Return the records of a file to score, with the class names of the model.

    Args:
      examples: the format that the model was trained on, with the columns of the file.
      path: the file.
      classes: the model's classes; empty if labels are numbers.

    Raises:
      UserError: the file cannot be read, or has a label that the model does not know.
    """
    with in_command():
        records = examples.read(path)
        if not classes:
            return records
        records = examples.without_missing(records, path, classes)
    return with_names_of(classes, records, examples, path)


def _check_no_blanks(rows: Sequence[Record], fields: Sequence[str]) -> None:
    """Raise UserError that counts the rows with a blank text: spreadsheets have many of them, and seldom one."""
    blank = [(row[WHERE], field) for row in rows for field in fields if not str(row.get(field, "-")).strip()]
    if blank:
        (where, field), count = blank[0], len({place for place, _ in blank})
        counts = f"{count:,} of {len(rows):,} rows have a blank text"
        raise UserError(f"{where}: {field!r} is blank ({counts}); fill the cells, or delete these rows")


def requested(texts: list[str], file: str, fields: Sequence[str], read: Callable[[str], list[Record]]) -> list[Record]:
    """Return the records of a command: sentences, a file, or stdin without either.

    Args:
      texts: the sentences.
      file: path of the file; empty for none.
      fields: fields that the model reads.
      read: returns the records of a file.

    Raises:
      UserError: there are both or nothing, or a record is bad.
    """
    if texts and file:
        raise UserError(f"sentences on the command line and --file={file} exclude each other; give one of them")
    if texts:
        return records_of(texts, single_field(fields))
    # Without this line, a command that waits for input seems to hang.
    if not file and sys.stdin.isatty():
        say("type one sentence per line, then Ctrl-D:", file=sys.stderr)
    records = read(file) if file else read_lines(sys.stdin.buffer, "stdin", single_field(fields))
    if not records:
        source = f"--file={file}" if file else "stdin"
        raise UserError(f"{source} has no lines, so there is nothing to predict; give at least one")
    return records


def check_top(top: int | None, out: str) -> None:
    """Raise UserError if a number of classes is to be written as columns, which have that of the prediction only."""
    if top and out.endswith(COLUMNS):
        raise UserError(f"--top={top} has no effect on the columns of --out={out}; leave it out, or name a .jsonl file")


def with_best(answer: dict[str, Any], top: int) -> dict[str, Any]:
    """Return an answer with the `top` most probable classes only, best first."""
    predicted = answer["prediction"]  # the first of those that rounding has made equal
    best = sorted(answer["probabilities"].items(), key=lambda pair: (-pair[1], pair[0] != predicted))[:top]
    return answer | {"probabilities": dict(best)}


def single_field(fields: Sequence[str]) -> str:
    """Return the only field of a record.

    Raises:
      UserError: records have several fields, so a plain text cannot be one.
    """
    if len(fields) > 1:
        names = " and ".join(map(repr, fields))
        raise UserError(f"the model reads {names} together; give a .jsonl file with these fields")
    return fields[0]


def with_answer(record: Record, answer: Record, fields: Sequence[str]) -> Record:
    """Return a record, without its place, together with its answer.

    Args:
      record: a record with its place.
      answer: the answer; it may repeat fields that the model reads, as they are.
      fields: these fields.

    Raises:
      UserError: the answer would overwrite another field.
    """
    taken = [name for name in record.keys() & answer.keys() if name not in fields or record[name] != answer[name]]
    if taken := sorted(taken):
        raise UserError(f"{record[WHERE]} has the field {taken[0]!r}, in which its answer is written; rename it")
    return {name: value for name, value in record.items() if name != WHERE} | answer


def _numbered(lines: Iterable[bytes], name: str) -> Iterable[tuple[str, bytes]]:
    for number, line in enumerate(lines, start=1):
        # Editors on Windows write a byte order mark at the start of a file; it is not text.
        yield f"{name}:{number}", (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).rstrip(b"\r\n")


def _checked(record: Record, where: str, fields: Sequence[str], list_field: str = "") -> Record:
    if list_field and list_field in record:
        texts = record[list_field]
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise UserError(f"{where}: {list_field!r} is {str(texts)[:40]!r}, not a list of texts; write one or more")
        return record | {WHERE: where}
    for field in fields:
        if field not in record:
            names = ", ".join(map(repr, record)) or "no fields"
            raise UserError(f"{where} has no field {field!r} (it has {names}); rename the field that holds the text")
        if not isinstance(record[field], str):
            raise UserError(f"{where}: {field!r} is {str(record[field])[:40]!r}, not a string; write it in quotes")
        text_of(record[field], where)
    return record | {WHERE: where}


def readable_text(prediction: dict[str, Any], fields: Sequence[str], shown: int) -> str:
    """Return one prediction as lines of text without control characters.

    Args:
      prediction: a record's fields with its prediction.
      fields: fields that the model reads.
      shown: number of classes to print with probabilities.

    Raises:
      KeyError: the prediction has another form, such as an embedding.
    """
    lines = ["  |  ".join(str(prediction[name]) for name in fields)]
    if "masks" in prediction:
        for guesses in prediction["masks"]:
            lines.append("   ".join(_percent(guess["piece"], guess["probability"]) for guess in guesses))
        lines.append(prediction["filled"])
    elif isinstance(prediction.get("words"), list):
        pairs = zip(prediction["words"], prediction["prediction"], strict=True)
        # The tag O marks words outside of any entity; printing it would bury the others.
        lines.append(" ".join(word if tag == "O" else f"{word}[{tag}]" for word, tag in pairs))
    elif isinstance(probabilities := prediction.get("probabilities"), dict):
        best = sorted(probabilities.items(), key=lambda pair: -pair[1])[:shown]
        lines.append("   ".join(_percent(name, probability) for name, probability in best))
        if isinstance(sets := prediction["prediction"], list):  # any number of classes
            lines[-1] = f"{', '.join(sets) or 'none'}   ({lines[-1]})"
        if prediction.get("accepted") is False:
            lines[-1] += "   (not accepted: below objective.threshold)"
    else:
        lines.append(str(prediction["prediction"]))
    return "\n    ".join(printable(line) for line in lines)


def write(
    out: str,
    records: Sequence[Record],
    answers: Iterator[Record],
    vectors: Iterable[np.ndarray],
    notes: Mapping[str, int],
    lines: Iterator[str] | None = None,
) -> None:
    """Write predictions to a file or to stdout; print to stderr how many, and how many texts were cut.

    Args:
      out: see `lines_of`; or a name in .npy. The file appears when it is complete.
      records: the records, at least one.
      answers: one answer per record, with the fields of the record; computed when it is written.
      vectors: the arrays of a .npy file in place of them, one below the other.
      notes: {what was changed, such as texts that were cut: number of records}.
      lines: what to write in place of `lines_of`.

    Raises:
      UserError: the file cannot be written, or see `lines_of`.
    """
    if lines and PurePath(out).suffix.lower() in _NOT_LINES:
        raise UserError(f"--out={out} would hold the lines of --file with a tag in each; name a file in .txt or .tsv")
    with command_line.output(out) as file:
        if out.endswith(ARRAY):
            array = np.concatenate(list(vectors))
            # Not `np.save`, which seeks in a file: the target may be a pipe.
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
            file.write(array.data)
        else:
            for line in lines or lines_of(answers, out, records):
                file.write(line.encode() + b"\n")
    if out:
        say(f"{len(records):,} predictions in {out}", file=sys.stderr)
    for note, count in notes.items():
        say(f"{count:,} of {len(records):,} texts were {note}{CUT_FEWER * note.startswith('cut')}", file=sys.stderr)


def lines_of(answers: Iterator[Record], out: str, records: Sequence[Record]) -> Iterator[str]:
    """Return the lines of a file of predictions: columns if its name ends in .csv, else JSON.

    Args:
      answers: one answer per record, with the fields of the record.
      out: the file, or a device or pipe without a suffix; empty for stdout.
      records: the records, at least one.

    Raises:
      UserError: the name has another suffix, or a record has a field with the name of a column of answers.
    """
    suffix = PurePath(out).suffix
    if suffix not in ("", *FORMS):
        raise UserError(f"--out={out} ends in {suffix}; name a file in {', '.join(FORMS)}, or {ARRAY} for embeddings")
    return _columns(answers, records) if out.endswith(COLUMNS) else map(json_text, answers)


def _columns(answers: Iterator[Record], records: Sequence[Record]) -> Iterator[str]:
    first = next(answers)
    fields = dict.fromkeys(name for record in records for name in record if name != WHERE)
    has_classes = "probabilities" in first.keys() - records[0].keys()  # else it is a field of the record
    if has_classes and (taken := [record[WHERE] for record in records if _PROBABILITY in record]):
        raise UserError(f"{taken[0]} has the field {_PROBABILITY!r}, in which its answer is written; rename it")
    names = list(fields | _cells(first, has_classes))
    yield csv_line(names)
    for answer in itertools.chain([first], answers):
        cells = _cells(answer, has_classes)
        yield csv_line(cells.get(name, "") for name in names)


def _cells(answer: Record, has_classes: bool) -> dict[str, str]:
    """Return an answer as {column: text}: of the probabilities only those of the prediction, lists as JSON."""
    row = dict(answer)
    if has_classes:
        best, of_class = row["prediction"], row.pop("probabilities")
        row[_PROBABILITY] = list(map(of_class.get, best)) if isinstance(best, list) else of_class[best]
    return {
        name: value if isinstance(value, str) else "" if value is None else json_text(value)
        for name, value in row.items()
    }


def _percent(name: str, probability: float) -> str:
    return f"{name} {probability:.1%}"
