"""Files as records, one dict per row: tables (.tsv, .csv), JSON in lines or in one array, and Parquet.

Content counts more than the name of a file: many tools write JSON lines into .json files and arrays into .jsonl files,
and spreadsheets write `;` into .csv files in locales where the comma is the decimal mark.
"""

import csv
import functools
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

from bertjax.data.labeled.base import WHERE, Record, not_empty, setting_remedy
from bertjax.data.sources.base import OnBad, check_surrogates, decoded, json_of, object_of, read_each, stop
from bertjax.data.sources.records import COMPRESSIONS, numbered_lines
from bertjax.data.sources.records import rows as parquet_rows
from bertjax.runtime.errors import UserError, say, shorten
from bertjax.runtime.storage import place_of

DELIMITERS = {".tsv": "\t", ".csv": ","}
# Delimiters to try, whatever the suffix.
_DELIMITERS = (",", ";", "\t", "|")
JSON, PARQUET = (".jsonl", ".json"), ".parquet"
# An optional first line with which a .csv declares its delimiter to spreadsheets.
_SPREADSHEET = re.compile("sep=(.)")
# A fully quoted field with doubled inner quotes, as pandas writes it.
_IN_QUOTES = re.compile(r'"(?:[^"]|"")*"')
# The csv module's default limit is 131,072 characters per field; this is the largest C long.
_LONGEST_FIELD = 2**63 - 1
# Placeholder: a lone surrogate, which cannot occur in UTF-8 text.
_CARRIAGE_RETURN = "\udc0d"
# A sentence with tags, for messages.
TAGGED = '{"tokens": ["Ada", "ran"], "tags": ["B-PER", "O"]}'
# Lines that show which delimiter a table has.
_SAMPLED = 50
# Messages show this many characters of a name.
_SHOWN = 40
# Names of columns. A first line of these alone is a header and not an example.
_NAMES = frozenset(
    "text sentence sentence1 sentence2 premise hypothesis question question1 question2 context answer review content "
    "title label labels class category score rating target sentiment intent gold_label".split()
)


def read(
    path: str, columns: Sequence[str], quoted: bool = False, on_bad: OnBad = stop, all_columns: bool = False
) -> list[Record]:
    """Read a file's rows as {column: value}, with their locations under `WHERE`.

    The first line in a .tsv or .csv names the columns. If all `columns` are numbers, counted from 0, the file has no
    header (as in GLUE's CoLA). Quotes are always parsed in a .csv, and in a .tsv only with `quoted`.

    Args:
      path: a .tsv, .csv, .jsonl or .json file, plain, .gz, .zst or .xz; or .parquet.
      columns: required columns.
      quoted: whether .tsv fields may be in double quotes.
      on_bad: called with the error for each malformed row; if it returns, the row is dropped.
      all_columns: whether to keep the other columns as well.

    Raises:
      UserError: the file or a column is missing, or no row is left.
    """
    if holds_objects(path):
        rows = _objects(path, columns, on_bad)
    elif kind_of(path) in DELIMITERS:
        rows = _rows(path, columns, quoted, on_bad)
    else:
        suffixes = ".tsv, .csv, .jsonl, .json (with .gz, .zst, .xz) or .parquet"
        raise UserError(f"{path} is not a table; its name must end in {suffixes}")
    names = {*columns, WHERE}
    records = (row if all_columns else {name: row[name] for name in row if name in names} for row in rows)
    return not_empty(records, path, "rows")


def preview(path: str, quoted: bool = False) -> tuple[list[str], list[Record]]:
    """Return the names of a table's columns and its well-formed rows, without knowing any column, without messages.

    The columns of JSON objects are all of their fields.

    Raises:
      UserError: the file cannot be read, or a quote is broken.
    """
    if holds_objects(path):
        objects = list(_objects(path, (), on_bad=lambda error: None))
        return list(dict.fromkeys(name for row in objects for name in row if name != WHERE)), objects
    header, *rows = [row for _, row in _open_table(path, (), quoted)[0] if any(map(str.strip, row))] or [[]]
    names = [name.strip() for name in header]
    return names, [dict(zip(names, row)) for row in rows if len(row) == len(names)]


def read_lines(path: str, column: str, on_bad: OnBad = stop) -> list[Record]:
    """Read each non-blank line as {column: line}, with its location under `WHERE`.

    Args:
      path: any file of text.
      column: the field of the line in its record.
      on_bad: called with the error for each line that is not UTF-8; if it returns, the line is dropped.

    Raises:
      UserError: the file cannot be read, or has no text.
    """
    texts = read_each(
        filled_lines(path), lambda item: {column: decoded(item[1], item[0]).strip(), WHERE: item[0]}, on_bad
    )
    return not_empty((record for record in texts if record[column]), path, "text")


def kind_of(path: str) -> str:
    """Return the suffix below a compression suffix in lower case, such as `.csv` for `a.CSV.gz`."""
    suffixes = [suffix for suffix in map(str.lower, PurePath(path).suffixes) if suffix not in COMPRESSIONS]
    return suffixes[-1] if suffixes else ""


def is_table(path: str) -> bool:
    """Return whether `read` accepts a file, by its suffix or because it holds JSON objects."""
    return kind_of(path) in DELIMITERS or holds_objects(path)


def holds_objects(path: str) -> bool:
    """Return whether a file has the suffix of JSON or Parquet, or starts with a JSON object, or is an array of them."""
    return kind_of(path) in (*JSON, PARQUET) or _located_objects(path) is not None


def first_line(path: str) -> bytes:
    """Return the first non-blank line, without white space before it; empty if there is none."""
    return next((line.lstrip() for _, line in filled_lines(path)), b"")


def content_of(path: str) -> bytes:
    """Return a whole file, with lines as `numbered_lines` gives them."""
    return b"\n".join(line for _, line in numbered_lines(path))


def value_of(path: str) -> Any:
    """Return what a JSON file holds, or the rows of a Parquet file.

    Raises:
      UserError: the file cannot be read.
    """
    return parquet_rows(place_of(path)) if kind_of(path) == PARQUET else json_of(content_of(path), path)


def parsed(content: bytes) -> Any:
    """Return the value that JSON holds; None if the content is something else."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def member(holder: Any, name: str, expected: type, where: str, form: str, default: Any = None) -> Any:
    """Return a field of a nested JSON object.

    Args:
      holder: what should be the object.
      name: the field.
      expected: the type of its value; a text must not be blank.
      where: the place of the object, for the error message.
      form: the remedy: how the file should look.
      default: the value if the field is missing.

    Raises:
      UserError: there is no such field, or it has another type.
    """
    value = holder.get(name, default) if isinstance(holder, dict) else None
    if not isinstance(value, expected) or (isinstance(value, str) and not value.strip()):
        kind = {list: "list", str: "text", int: "number", bool: "true or false"}[expected]
        raise UserError(f"{where.rstrip(':')} has no {kind} {name!r}; {form}")
    if isinstance(value, str):
        check_surrogates(value, f"{where}: {name}")
    return value


def no_column(where: str, column: str, names: Iterable[str]) -> UserError:
    """Return the error for a table or an object without a column."""
    known = shorten([repr(name[:_SHOWN]) for name in names], limit=20)
    settings = ", name one of these, or give the numbers of all, counted from 0, if there is no header"
    remedy = setting_remedy(settings, ", or name another with its flag, such as --text or --label")
    return UserError(f"{where} has no column {column!r}; it has {known}; rename a column{remedy}")


def filled_lines(path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the lines that are not blank, with their locations."""
    return ((f"{path}:{number}", line) for number, line in numbered_lines(path) if line.strip())


# JSON and Parquet.


def _located_objects(path: str) -> Iterable[tuple[str, Any]] | None:
    """Return a file's objects, or its lines if each is one, with their locations; None if the file is something else.

    Raises:
      UserError: the file cannot be read, or a .json is not JSON.
    """
    kind = kind_of(path)
    lines = [] if kind == PARQUET else [line.lstrip() for _, line in itertools.islice(filled_lines(path), 2)]
    start = lines[0][:1] if lines else b""
    if start == b"{" and isinstance(parsed(lines[0]), dict) and (len(lines) > 1 or kind != ".json"):
        return filled_lines(path)
    if kind in (".json", PARQUET):
        if not isinstance(values := value_of(path), list):
            raise UserError(f"{path} is not an array of objects: it is {str(values)[:_SHOWN]!r}; write [{{...}}, ...]")
    else:
        values = parsed(content_of(path)) if start == b"[" else None
        if not isinstance(values, list) or not any(isinstance(value, dict) for value in values):
            return filled_lines(path) if kind in JSON else None
    return ((f"{path}: object {number}", value) for number, value in enumerate(values, start=1))


def _objects(path: str, columns: Sequence[str], on_bad: OnBad) -> Iterator[Record]:
    """Yield the objects of a file that `holds_objects`."""
    form = f"{{{columns[0]!r}: ...}}" if columns else TAGGED

    def record_of(item: tuple[str, Any]) -> Record:
        where, value = item
        record = object_of(value, where, form) if isinstance(value, bytes) else value
        if not isinstance(record, dict):
            raise UserError(f"{where} is {str(record)[:_SHOWN]!r}; write {form}")
        for column in columns:
            if column not in record:
                raise no_column(where, column, record)
            texts = record[column] if isinstance(record[column], list) else [record[column]]
            check_surrogates(" ".join(text for text in texts if isinstance(text, str)), f"{where}: {column}")
        return record | {WHERE: where}

    return read_each(_located_objects(path) or (), record_of, on_bad)


# Tables with a delimiter.


def _rows(path: str, columns: Sequence[str], quoted: bool, on_bad: OnBad) -> Iterator[Record]:
    """Yield rows from a .csv or .tsv file; rows with another number of fields than the header are bad."""
    rows, delimiter, quoted, is_usual = _open_table(path, columns, quoted)
    if not rows:
        return
    if is_numbered := _are_numbers(columns):
        _check_no_header(rows[0], columns, path)
        [(width, _)] = Counter(len(row) for _, row in rows).most_common(1)
        header = [str(number) for number in range(max(width, 1 + max(map(int, columns))))]
    else:
        (_, header), *rows = rows
        # Hand-written files often have a space after the comma. Names that match exactly keep their spaces.
        if not set(columns) <= set(header):
            header = [name.strip() for name in header]
        for column in columns:
            if column not in header:
                raise no_column(path, column, header)
            if header.count(column) > 1:
                raise UserError(f"{path} has {header.count(column)} columns {column!r}; rename all but one of them")
    if not is_usual:
        _note(f"{path}: its fields are separated by {delimiter!r}, and are read so")
    empty = 0
    for number, row in rows:
        where = f"{path}:{number}"
        # Spreadsheets write rows without any text as delimiters alone.
        if not any(map(str.strip, row)):
            empty += 1
        # Concatenated files repeat the header, which would otherwise be read as one more example.
        elif row == header and not is_numbered:
            on_bad(UserError(f"{where} has the names of the columns again; remove the line"))
        elif len(row) == len(header):
            yield dict(zip(header, row)) | {WHERE: where}
        else:
            remedy = f"write a field with {delimiter!r} in double quotes" if quoted else f"remove {delimiter!r} in one"
            remedy += "" if quoted else setting_remedy(", or set examples.quoted=True if fields are in quotes")
            fields = f"has {len(row)} fields, not {len(header)}; give every line all columns"
            on_bad(UserError(f"{where} {fields}, or {remedy}"))
    if empty:
        _note(f"{path}: empty rows skipped: {empty:,}")
    if not quoted and (count := _count_quoted([row for _, row in rows], header, columns)):
        remedy = setting_remedy("; set examples.quoted=True if a program such as pandas has written them")
        _note(f"{path}: {count:,} texts are in double quotes, which stay{remedy}")


@functools.cache
def _note(line: str) -> None:
    """Say once what was found in a file, however often a command reads it."""
    say(line, file=sys.stderr)


def _open_table(path: str, columns: Sequence[str], quoted: bool) -> tuple[list[tuple[int, list[str]]], str, bool, bool]:
    """Read a .csv or .tsv file.

    Args:
      columns: required columns; empty if none is known.
      quoted: see `read`.

    Returns:
      All rows with their line numbers; the delimiter; whether quotes were parsed; and whether the delimiter is the one
      of the suffix, or the first line declares it.
    """
    own = DELIMITERS.get(kind_of(path), ",")
    sampled = [decoded(line, where) for where, line in itertools.islice(filled_lines(path), _SAMPLED)]
    is_declared = bool(sampled) and _SPREADSHEET.fullmatch(sampled[0])
    delimiter = is_declared[1] if is_declared else _delimiter(sampled, columns, own)
    # R and pandas may quote all fields of a .tsv, its names included.
    quotes_names = bool(sampled and columns) and not set(columns) <= set(sampled[0].split(delimiter))
    quotes_names = quotes_names and set(columns) <= set(_fields(sampled[:1], delimiter)[0])
    quoted = quoted or delimiter != "\t" or quotes_names or kind_of(path) == ".csv"
    rows = list(_parsed_rows(path, delimiter, quoted))
    return rows[1:] if is_declared else rows, delimiter, quoted, bool(is_declared) or delimiter == own


def _delimiter(lines: Sequence[str], columns: Sequence[str], own: str) -> str:
    """Return the delimiter: the one that gives the required columns, else the one that divides all lines alike.

    Args:
      lines: first lines of the file.
      columns: required columns; empty if none is known.
      own: the delimiter of the suffix, which comes before others.
    """
    first, marks = next(iter(lines), ""), (own, *(mark for mark in _DELIMITERS if mark != own))
    if not (is_numbered := _are_numbers(columns)) and columns:
        for mark in marks:
            if set(columns) <= set(first.split(mark)) or set(columns) <= set(_fields([first], mark)[0]):
                return mark
    least = 1 + max(map(int, columns)) if is_numbered else 2
    for mark in marks:
        [(width, count)] = Counter(map(len, _fields(lines, mark))).most_common(1)
        is_even = count == len(lines)
        # The delimiter of the suffix is preferred even if it gives too few fields, which is then the error. Text has
        # commas by chance, but no tabs: a table of tabs in which one line lacks a tab is not one of commas.
        if mark == own and ((is_even and width >= min(least, 2)) or (mark == "\t" and width >= max(least, 2))):
            return mark
        if is_even and width >= max(least, 2):
            return mark
    return own if columns and own in first else max(marks, key=first.count)


def _fields(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    """Return the fields of each line, without quotes; one empty line if a quote is broken."""
    try:
        return list(csv.reader(lines, delimiter=delimiter)) or [[]]
    except csv.Error:
        return [[]]


def _check_no_header(first: tuple[int, list[str]], columns: Sequence[str], path: str) -> None:
    """Raise UserError if the first row holds column names where numbers are given for the columns."""
    number, row = first
    names = [row[int(column)].strip() for column in columns if int(column) < len(row)]
    if names and all(name.casefold() in _NAMES for name in names):
        shown = f"the names of the columns ({shorten(list(map(repr, names)))}), and columns are given by number"
        raise UserError(f"{path}:{number} has {shown}; give the names, or remove the line")


def _are_numbers(columns: Sequence[str]) -> bool:
    return bool(columns) and all(column.isdecimal() for column in columns)


def _count_quoted(rows: list[list[str]], header: list[str], columns: Sequence[str]) -> int:
    """Count required fields that are fully quoted; 0 unless most fields with a quote are."""
    # Texts have quotations of their own, as in GLUE, so only quotes around whole fields count.
    places = [header.index(column) for column in columns]
    with_quote = [row[place] for row in rows for place in places if place < len(row) and '"' in row[place]]
    count = sum(map(bool, map(_IN_QUOTES.fullmatch, with_quote)))
    return count if 2 * count > len(with_quote) else 0


def _parsed_rows(path: str, delimiter: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with the numbers of their first lines; a quoted field may span several lines."""
    csv.field_size_limit(_LONGEST_FIELD)
    lines = (decoded(line, f"{path}:{number}") for number, line in numbered_lines(path))
    # The csv module ends a row at a carriage return, so hide those inside of lines.
    lines = (line.replace("\r", _CARRIAGE_RETURN) + "\n" for line in lines)
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    # Strict, because a broken quote would otherwise swallow the rows after it.
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    while True:
        first = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            remedy = "close it, or double a quote in a field"
            raise UserError(f"{path}:{first}: a quote is broken ({error}); {remedy}") from None
        if row:
            yield first, [field.replace(_CARRIAGE_RETURN, "\r") for field in row]
