"""Records from tables with named columns: .tsv, .csv, .jsonl and .json files, plain or compressed."""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from etils import epath

from bertjax.data.labeled.base import WHERE, Record
from bertjax.data.sources.base import OnBad, check_surrogates, decoded, object_of, stop, text_of
from bertjax.data.sources.lines import COMPRESSIONS, numbered_lines
from bertjax.errors import UserError, shorten
from bertjax.storage import reason_of

DELIMITERS = {".tsv": "\t", ".csv": ","}
# Characters of a column's name that a message shows.
_SHOWN = 40
# The csv module refuses fields of more than 131,072 characters unless told otherwise; this is the largest C long.
_LONGEST_FIELD = 2**63 - 1
# A lone surrogate, which text in UTF-8 cannot have.
_CARRIAGE_RETURN = "\udc0d"


def read(
    path: str, columns: Sequence[str], quoted: bool = False, on_bad: OnBad = stop, all_columns: bool = False
) -> list[Record]:
    """Return the rows of a table, each as {column: text} with its place under `WHERE`.

    The first line of a .tsv or .csv names the columns. If all of `columns` are numbers, they are counted from 0 and
    there is no such line (as in GLUE's CoLA). A .tsv has no quotes unless `quoted`; a .csv always has. A .json file
    holds one array of objects.

    Args:
      path: a .tsv, .csv, .jsonl or .json file, plain, .gz, .zst or .xz.
      columns: the required columns.
      quoted: whether a field of a .tsv may be in double quotes.
      on_bad: called with the error of each line that is not a row of the table; if the call returns, it is left out.
      all_columns: whether rows also keep the other columns.

    Raises:
      UserError: the file or a column is missing, or no row is left.
    """
    if not path:
        raise UserError("examples.train or examples.heldout is empty; name a .tsv, .csv or .jsonl file for each")
    kind = kind_of(path)
    if kind == ".jsonl":
        rows = _objects(path, columns, on_bad)
    elif kind == ".json":
        rows = _array(path, columns, on_bad)
    elif kind in DELIMITERS:
        rows = _rows(path, columns, kind, quoted or kind == ".csv", on_bad)
    else:
        raise UserError(
            f"{path} is not a table; its name must end with .tsv, .csv, .jsonl or .json (and .gz, .zst or .xz)"
        )
    names = {*columns, WHERE}
    records = [row if all_columns else {name: row[name] for name in row if name in names} for row in rows]
    if not records:
        raise UserError(f"{path} has no rows; give a file with at least one")
    return records


def is_table(path: str) -> bool:
    """Return whether `read` reads a file of this name."""
    return kind_of(path) in (*DELIMITERS, ".jsonl", ".json")


def read_lines(path: str, column: str) -> list[Record]:
    """Return each line of a file that is not blank as {column: line}, with its place under `WHERE`.

    Raises:
      UserError: the file cannot be read, or has no text.
    """
    lines = enumerate(_text(path), start=1)
    records = [{column: line.strip(), WHERE: f"{path}:{number}"} for number, line in lines if line.strip()]
    if not records:
        raise UserError(f"{path} has no text; give a file with a text in each line")
    return records


def kind_of(path: str) -> str:
    """Return the suffix of a file without that of its compression, such as `.csv` of `a.csv.gz`."""
    suffixes = [suffix for suffix in PurePath(path).suffixes if suffix not in COMPRESSIONS]
    return suffixes[-1] if suffixes else ""


def _rows(path: str, columns: Sequence[str], kind: str, quoted: bool, on_bad: OnBad) -> Iterator[Record]:
    header = None
    if all(column.isdecimal() for column in columns):
        header = [str(number) for number in range(1 + max(map(int, columns)))]
    width = None  # of a .csv
    for number, row in (_quoted if quoted else _unquoted)(path, DELIMITERS[kind]):
        width = width or len(row)
        if header is None:
            header = row
            _check_header(header, columns, path)
            continue
        try:
            _check_width(row, max(len(header), width) if kind == ".csv" else len(header), kind, quoted)
        except UserError as error:
            on_bad(UserError(f"{path}:{number} {error}"))
            continue
        values = dict(zip(header, row))
        yield values | {WHERE: f"{path}:{number}"}


def _check_header(header: list[str], columns: Sequence[str], path: str) -> None:
    names = shorten([repr(name[:_SHOWN]) for name in header], limit=20)
    for column in columns:
        if column not in header:
            raise UserError(f"{path} has no column {column!r}; it has {names}; {_column_hint(header)}")
        if header.count(column) > 1:
            raise UserError(f"{path} has {header.count(column)} columns {column!r}; rename all but one of them")


def _column_hint(header: list[str]) -> str:
    """Return what may be wrong with a table whose first line lacks a column."""
    delimiter = next((mark for mark in ";\t,|" if len(header) == 1 and mark in header[0]), "")
    if delimiter:
        return f"its fields are separated by {delimiter!r}: separate those of a .csv by commas, those of a .tsv by tabs"
    return "rename a column, name one of these, or give the numbers of all, counted from 0, if the file has no header"


def _check_width(row: list[str], width: int, kind: str, quoted: bool) -> None:
    """Raise UserError if a row lacks fields, or if a .csv has too many: a comma in a field shifts those after it.

    Rows of GLUE's .tsv files may have more fields than the header.
    """
    if len(row) == width or (len(row) > width and kind != ".csv"):
        return
    remedy = "give every line all columns"
    if not quoted:
        remedy += ", or set examples.quoted=True if fields are in quotes"
    elif len(row) > width:
        remedy = "write a field with a comma in double quotes"
    raise UserError(f"has {len(row)} fields, not {width}; {remedy}")


def _unquoted(path: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a table without quotes, each with the number of its line."""
    for number, line in enumerate(_text(path), start=1):
        if line:
            yield number, line.split(delimiter)


def _quoted(path: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a table with quotes, each with the number of its first line; a field may span several lines."""
    csv.field_size_limit(_LONGEST_FIELD)
    # The csv module takes a carriage return in a line for the end of the row.
    lines = (line.replace("\r", _CARRIAGE_RETURN) + "\n" for line in _text(path))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        first = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(
                f"{path}:{first}: a quote is broken ({error}); close it, or double a quote inside of a field"
            ) from None
        if row:
            yield first, [field.replace(_CARRIAGE_RETURN, "\r") for field in row]


def _objects(path: str, columns: Sequence[str], on_bad: OnBad) -> Iterator[Record]:
    for number, line in numbered_lines(epath.Path(path)):
        if line.strip():
            try:
                record = _object(line, f"{path}:{number}", columns)
            except UserError as error:
                on_bad(error)
            else:
                yield record


def _array(path: str, columns: Sequence[str], on_bad: OnBad) -> Iterator[Record]:
    content = b"\n".join(line for _, line in numbered_lines(epath.Path(path)))
    try:
        values = json.loads(text_of(content, path))
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not JSON ({reason_of(error)}); a .json file holds one array of objects; a .jsonl file "
            "has one in each line"
        ) from None
    if not isinstance(values, list):
        start = str(values)[:40]
        raise UserError(f"{path} is not an array of objects: it is {start!r}; write [{{{columns[0]!r}: ...}}, ...]")
    for number, value in enumerate(values, start=1):
        where = f"{path}: object {number}"
        try:
            if not isinstance(value, dict):
                raise UserError(f"{where} is {str(value)[:40]!r}; write {{{columns[0]!r}: ...}}")
            record = _checked(value, where, columns)
        except UserError as error:
            on_bad(error)
        else:
            yield record


def _object(line: bytes, where: str, columns: Sequence[str]) -> Record:
    return _checked(object_of(line, where, columns[0]), where, columns)


def _checked(record: dict[str, Any], where: str, columns: Sequence[str]) -> Record:
    if missing := [column for column in columns if column not in record]:
        names = shorten([repr(name[:_SHOWN]) for name in record], limit=20)
        raise UserError(f"{where} has no field {missing[0]!r}, it has {names}; correct the line or the name")
    for column in columns:
        texts = record[column] if isinstance(record[column], list) else [record[column]]
        check_surrogates(" ".join(text for text in texts if isinstance(text, str)), f"{where}: {column}")
    return record | {WHERE: where}


def _text(path: str) -> Iterator[str]:
    """Yield lines as text without their ends."""
    for number, line in numbered_lines(epath.Path(path)):
        yield decoded(line, f"{path}:{number}")
