"""Reader for tables with named columns: .tsv, .csv, .jsonl and .json, plain or compressed."""

import csv
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from etils import epath

from bertjax.data.labeled.base import WHERE, Record
from bertjax.data.sources.base import OnBad, check_surrogates, decoded, object_of, stop, text_of
from bertjax.data.sources.lines import COMPRESSIONS, numbered_lines
from bertjax.errors import UserError, say, shorten
from bertjax.storage import reason_of

DELIMITERS = {".tsv": "\t", ".csv": ","}
# Delimiters to try, whatever the suffix: spreadsheets write ; in locales where the comma is the decimal mark.
_DELIMITERS = (",", ";", "\t", "|")
# An optional first line with which a .csv declares its delimiter to spreadsheets.
_SPREADSHEET = re.compile("sep=(.)")
# A fully quoted field with doubled inner quotes, as pandas writes it.
_IN_QUOTES = re.compile(r'"(?:[^"]|"")*"')
# Messages show this many characters of a column name.
_SHOWN = 40
# The csv module's default limit is 131,072 characters per field; this is the largest C long.
_LONGEST_FIELD = 2**63 - 1
# Placeholder: a lone surrogate, which cannot occur in UTF-8 text.
_CARRIAGE_RETURN = "\udc0d"


def read(
    path: str, columns: Sequence[str], quoted: bool = False, on_bad: OnBad = stop, all_columns: bool = False
) -> list[Record]:
    """Read a table's rows as {column: text}, with their locations under `WHERE`.

    The first line in a .tsv or .csv names the columns. If all `columns` are numbers, they count from 0 and there is no
    header (as in GLUE's CoLA). Quotes are always parsed in a .csv, and in a .tsv only with `quoted`. A .json file holds
    one array of objects, a .jsonl file one object per line.

    Content wins over the file name: JSON objects (in lines or in an array) are read from any of these files, and other
    delimiters, such as a spreadsheet's `;`, are accepted if only they give the required columns.

    Args:
      path: a .tsv, .csv, .jsonl or .json file, plain, .gz, .zst or .xz.
      columns: required columns.
      quoted: whether .tsv fields may be in double quotes.
      on_bad: called with the error for each malformed row; if it returns, the row is dropped.
      all_columns: whether to keep the other columns as well.

    Raises:
      UserError: the file or a column is missing, or no row is left.
    """
    if not path:
        raise UserError("examples.train or examples.heldout is empty; name a .tsv, .csv or .jsonl file for each")
    kind = kind_of(path)
    if not is_table(path):
        raise UserError(
            f"{path} is not a table; its name must end with .tsv, .csv, .jsonl or .json (and .gz, .zst or .xz)"
        )
    if kind in DELIMITERS and not _is_object(_first_line(path)[1]):
        rows = _rows(path, columns, kind, quoted or kind == ".csv", on_bad)
    else:
        rows = _json_rows(path, columns, on_bad)
    names = {*columns, WHERE}
    records = [row if all_columns else {name: row[name] for name in row if name in names} for row in rows]
    if not records:
        raise UserError(f"{path} has no rows; give a file with at least one")
    return records


def read_objects(path: str, on_bad: OnBad = stop) -> list[Record]:
    """Read the objects in a JSON lines file or a JSON array, with their locations under `WHERE`.

    Raises:
      UserError: the file cannot be read, or holds no object.
    """
    records = list(_json_rows(path, (), on_bad))
    if not records:
        raise UserError(f"{path} has no objects; give a file with at least one")
    return records


def _json_rows(path: str, columns: Sequence[str], on_bad: OnBad) -> Iterator[Record]:
    """Read JSON lines or a JSON array, decided by content and not by the suffix."""
    # Many tools write JSON lines into .json files, and arrays into .jsonl files.
    first = _first_line(path)[1].lstrip()
    is_whole = kind_of(path) == ".json" and not (_is_object(first) and _has_more_lines(path))
    if is_whole:
        return _array(_json(path), path, columns, on_bad)
    if first[:1] == b"[" and (objects := _array_of(path)) is not None:
        return _array(objects, path, columns, on_bad)
    return _objects(path, columns, on_bad)


def has_column(path: str, column: str) -> bool:
    """Return whether the header of a .tsv or .csv has this column."""
    kind = kind_of(path)
    return kind in DELIMITERS and column.encode() in _first_line(path)[1].split(DELIMITERS[kind].encode())


def is_table(path: str) -> bool:
    """Return whether `read` accepts a file with this suffix."""
    return kind_of(path) in (*DELIMITERS, ".jsonl", ".json")


def read_lines(path: str, column: str) -> list[Record]:
    """Read each non-blank line as {column: line}, with its location under `WHERE`.

    Raises:
      UserError: the file cannot be read, or has no text.
    """
    lines = enumerate(_text(path), start=1)
    records = [{column: line.strip(), WHERE: f"{path}:{number}"} for number, line in lines if line.strip()]
    if not records:
        raise UserError(f"{path} has no text; give a file with a text in each line")
    return records


def kind_of(path: str) -> str:
    """Return the suffix below a compression suffix, such as `.csv` for `a.csv.gz`."""
    suffixes = [suffix for suffix in PurePath(path).suffixes if suffix not in COMPRESSIONS]
    return suffixes[-1] if suffixes else ""


def _rows(path: str, columns: Sequence[str], kind: str, quoted: bool, on_bad: OnBad) -> Iterator[Record]:
    """Yield rows from a .csv or .tsv file; rows with another number of fields than the header are bad."""
    delimiter, has_quoted_names = _delimiter(path, columns, kind)
    quoted = quoted or has_quoted_names or delimiter != "\t"
    if not (rows := list((_quoted if quoted else _unquoted)(path, delimiter))):
        return
    if _are_numbers(columns):
        [(width, _)] = Counter(len(row) for _, row in rows).most_common(1)
        header = [str(number) for number in range(max(width, 1 + max(map(int, columns))))]
    else:
        if _SPREADSHEET.fullmatch(delimiter.join(rows[0][1])):
            rows = rows[1:]
        (_, header), *rows = rows or [(1, [])]
        # Hand-written files often have a space after the comma. Names that match exactly keep their spaces.
        if not set(columns) <= set(header):
            header = [name.strip() for name in header]
        _check_header(header, columns, path)
    for number, row in rows:
        # Concatenated files repeat the header, which would otherwise be read as one more example.
        if row == header and not _are_numbers(columns):
            on_bad(UserError(f"{path}:{number} has the names of the columns again; remove the line"))
        elif len(row) == len(header):
            yield dict(zip(header, row)) | {WHERE: f"{path}:{number}"}
        else:
            on_bad(UserError(f"{path}:{number} {_width_error(row, len(header), delimiter, quoted)}"))
    if not quoted and (count := _count_quoted([row for _, row in rows], header, columns)):
        say(
            f"{path}: {count:,} texts are in double quotes, which stay; set examples.quoted=True if a program such as "
            "pandas has written them",
            file=sys.stderr,
        )


def _delimiter(path: str, columns: Sequence[str], kind: str) -> tuple[str, bool]:
    """Return the delimiter and whether the column names are quoted.

    The suffix decides, unless only another delimiter gives the required columns.
    """
    number, line = _first_line(path)
    first, own = decoded(line, f"{path}:{number}"), DELIMITERS[kind]
    if spreadsheet := _SPREADSHEET.fullmatch(first):
        return spreadsheet[1], False
    if _are_numbers(columns) and own in first:
        return own, False
    # The suffix's delimiter comes first, so that a header with several marks is read as its name says.
    for delimiter in (own, *(mark for mark in _DELIMITERS if mark != own)):
        names = first.split(delimiter)
        try:
            unquoted = next(csv.reader([first], delimiter=delimiter), [])
        except csv.Error:
            continue
        for header in (names, unquoted):
            has_all = len(header) > max(map(int, columns)) if _are_numbers(columns) else set(columns) <= set(header)
            if has_all and delimiter != own:
                say(f"{path}: its fields are separated by {delimiter!r}, and are read so", file=sys.stderr)
            if has_all:
                return delimiter, header is unquoted and unquoted != names
    return own, False


def _are_numbers(columns: Sequence[str]) -> bool:
    return all(column.isdecimal() for column in columns)


def _count_quoted(rows: list[list[str]], header: list[str], columns: Sequence[str]) -> int:
    """Count required fields that are fully quoted; 0 unless most fields with a quote are."""
    places = [header.index(column) for column in columns]
    with_quote = [row[place] for row in rows for place in places if place < len(row) and '"' in row[place]]
    count = sum(map(bool, map(_IN_QUOTES.fullmatch, with_quote)))
    return count if 2 * count > len(with_quote) else 0


def _check_header(header: list[str], columns: Sequence[str], path: str) -> None:
    names = shorten([repr(name[:_SHOWN]) for name in header], limit=20)
    for column in columns:
        if column not in header:
            raise UserError(f"{path} has no column {column!r}; it has {names}; {_column_hint(header)}")
        if header.count(column) > 1:
            raise UserError(f"{path} has {header.count(column)} columns {column!r}; rename all but one of them")


def _column_hint(header: list[str]) -> str:
    """Suggest a remedy for a header that lacks a column."""
    delimiter = next((mark for mark in ";\t,|" if len(header) == 1 and mark in header[0]), "")
    if delimiter:
        return f"its fields are separated by {delimiter!r}: separate those of a .csv by commas, those of a .tsv by tabs"
    return "rename a column, name one of these, or give the numbers of all, counted from 0, if the file has no header"


def _width_error(row: list[str], width: int, delimiter: str, quoted: bool) -> str:
    """Describe a row with the wrong number of fields: a delimiter inside a field shifts the fields after it."""
    remedy = "give every line all columns"
    name = {",": "a comma", "\t": "a tab"}.get(delimiter, repr(delimiter))
    if not quoted and len(row) > width:
        remedy = f"remove {name} that is inside of a field, or set examples.quoted=True if fields are in quotes"
    elif not quoted:
        remedy += ", or set examples.quoted=True if fields are in quotes"
    elif len(row) > width:
        remedy = f"write a field with {name} in double quotes"
    return f"has {len(row)} fields, not {width}; {remedy}"


def _unquoted(path: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield rows without parsing quotes, with line numbers."""
    for number, line in enumerate(_text(path), start=1):
        if line:
            yield number, line.split(delimiter)


def _quoted(path: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with parsed quotes and the number of their first line; a quoted field may span several lines."""
    csv.field_size_limit(_LONGEST_FIELD)
    # The csv module ends a row at a carriage return, so hide those inside of lines.
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


def _first_line(path: str) -> tuple[int, bytes]:
    """Return the number and content of the first non-blank line."""
    return next(((number, line) for number, line in numbered_lines(epath.Path(path)) if line.strip()), (1, b""))


def _has_more_lines(path: str) -> bool:
    """Return whether a file has at least two non-blank lines."""
    lines = (line for _, line in numbered_lines(epath.Path(path)) if line.strip())
    return len(list(itertools.islice(lines, 2))) == 2


def _is_object(line: bytes) -> bool:
    """Return whether a line is a complete JSON object."""
    try:
        return line.lstrip()[:1] == b"{" and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _array_of(path: str) -> list[Any] | None:
    """Return the file's JSON array of objects; None if it holds something else."""
    try:
        values = json.loads(b"\n".join(line for _, line in numbered_lines(epath.Path(path))))
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, list) and any(isinstance(value, dict) for value in values) else None


def _json(path: str) -> Any:
    content = b"\n".join(line for _, line in numbered_lines(epath.Path(path)))
    try:
        return json.loads(text_of(content, path))
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not JSON ({reason_of(error)}); a .json file holds one array of objects; a .jsonl file "
            "has one in each line"
        ) from None


def _array(values: Any, path: str, columns: Sequence[str], on_bad: OnBad) -> Iterator[Record]:
    if not isinstance(values, list):
        start = str(values)[:40]
        raise UserError(
            f"{path} is not an array of objects: it is {start!r}; write [{{{_first(columns)!r}: ...}}, ...]"
        )
    for number, value in enumerate(values, start=1):
        where = f"{path}: object {number}"
        try:
            if not isinstance(value, dict):
                raise UserError(f"{where} is {str(value)[:40]!r}; write {{{_first(columns)!r}: ...}}")
            record = _checked(value, where, columns)
        except UserError as error:
            on_bad(error)
        else:
            yield record


def _object(line: bytes, where: str, columns: Sequence[str]) -> Record:
    return _checked(object_of(line, where, _first(columns)), where, columns)


def _first(columns: Sequence[str]) -> str:
    """Return a field name for the example in an error message."""
    return next(iter(columns), "tokens")


def _checked(record: dict[str, Any], where: str, columns: Sequence[str]) -> Record:
    if missing := [column for column in columns if column not in record]:
        names = shorten([repr(name[:_SHOWN]) for name in record], limit=20)
        raise UserError(f"{where} has no field {missing[0]!r}, it has {names}; correct the line or the name")
    for column in columns:
        texts = record[column] if isinstance(record[column], list) else [record[column]]
        check_surrogates(" ".join(text for text in texts if isinstance(text, str)), f"{where}: {column}")
    return record | {WHERE: where}


def _text(path: str) -> Iterator[str]:
    """Yield decoded lines without line ends."""
    for number, line in numbered_lines(epath.Path(path)):
        yield decoded(line, f"{path}:{number}")
