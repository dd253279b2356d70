"""Reader for tables with named columns: .tsv, .csv, .jsonl and .json, plain or compressed, and .parquet."""

import csv
import functools
import itertools
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from bertjax.data.labeled import json_objects
from bertjax.data.labeled.base import WHERE, Record, flag_remedy, not_empty, setting_remedy
from bertjax.data.sources.base import OnBad, decoded, read_each, stop
from bertjax.data.sources.lines import numbered_lines
from bertjax.runtime.errors import UserError, say, shorten

DELIMITERS = {".tsv": "\t", ".csv": ","}
# Delimiters to try, whatever the suffix: spreadsheets write ; in locales where the comma is the decimal mark.
_DELIMITERS = (",", ";", "\t", "|")
# An optional first line with which a .csv declares its delimiter to spreadsheets.
_SPREADSHEET = re.compile("sep=(.)")
# A fully quoted field with doubled inner quotes, as pandas writes it.
_IN_QUOTES = re.compile(r'"(?:[^"]|"")*"')
# The csv module's default limit is 131,072 characters per field; this is the largest C long.
_LONGEST_FIELD = 2**63 - 1
# Placeholder: a lone surrogate, which cannot occur in UTF-8 text.
_CARRIAGE_RETURN = "\udc0d"
# Lines that show which delimiter a table without a header has.
_SAMPLED = 50
# Names of columns. A first line of these alone is a header and not an example.
_NAMES = frozenset(
    "text sentence sentence1 sentence2 premise hypothesis question question1 question2 context answer review content "
    "title label labels class category score rating target sentiment intent gold_label".split()
)


def read(
    path: str, columns: Sequence[str], quoted: bool = False, on_bad: OnBad = stop, all_columns: bool = False
) -> list[Record]:
    """Read a table's rows as {column: text}, with their locations under `WHERE`.

    The first line in a .tsv or .csv names the columns. If all `columns` are numbers, counted from 0, the file has no
    header (as in GLUE's CoLA). Quotes are always parsed in a .csv, and in a .tsv only with `quoted`. A .json file holds
    one array of objects, a .jsonl file one object per line.

    Content wins over the file name: JSON objects (in lines or in an array) are read from any of these files, and other
    delimiters, such as a spreadsheet's `;`, are accepted if only they give the required columns.

    Args:
      path: a .tsv, .csv, .jsonl or .json file, plain, .gz, .zst or .xz; or .parquet.
      columns: required columns.
      quoted: whether .tsv fields may be in double quotes.
      on_bad: called with the error for each malformed row; if it returns, the row is dropped.
      all_columns: whether to keep the other columns as well.

    Raises:
      UserError: the file or a column is missing, or no row is left.
    """
    kind = json_objects.kind_of(path)
    if json_objects.holds_objects(path):
        rows = json_objects.read(path, columns, on_bad)
    elif kind in DELIMITERS:
        rows = _rows(path, columns, kind, quoted or kind == ".csv", on_bad)
    else:
        suffixes = ".tsv, .csv, .jsonl, .json (with .gz, .zst, .xz) or .parquet"
        raise UserError(f"{path} is not a table; its name must end in {suffixes}")
    names = {*columns, WHERE}
    records = (row if all_columns else {name: row[name] for name in row if name in names} for row in rows)
    return not_empty(records, path, "rows")


def preview(path: str, quoted: bool = False) -> tuple[list[str], list[Record]]:
    """Return the names of a table's columns and its well-formed rows, without knowing any column, without messages.

    A .tsv or .csv has the delimiter with which all of its first lines have the same number of fields, at least two. The
    columns of JSON objects are all of their fields.

    Raises:
      UserError: the file cannot be read, or a quote is broken.
    """
    if json_objects.holds_objects(path):
        objects = list(json_objects.read(path, (), on_bad=lambda error: None))
        return list(dict.fromkeys(name for row in objects for name in row if name != WHERE)), objects
    kind = json_objects.kind_of(path)
    rows, _, _ = _opened(path, (), kind, quoted or kind == ".csv")
    header, *rows = [row for _, row in rows if any(map(str.strip, row))] or [[]]
    names = [name.strip() for name in header]
    return names, [dict(zip(names, row)) for row in rows if len(row) == len(names)]


def has_column(path: str, column: str) -> bool:
    """Return whether the header of a .tsv or .csv has this column."""
    kind = json_objects.kind_of(path)
    return kind in DELIMITERS and column.encode() in json_objects.first_line(path)[1].split(DELIMITERS[kind].encode())


def is_table(path: str) -> bool:
    """Return whether `read` accepts a file, by its suffix or because it holds JSON objects."""
    return json_objects.kind_of(path) in DELIMITERS or json_objects.holds_objects(path)


def read_lines(path: str, column: str, on_bad: OnBad = stop) -> list[Record]:
    """Read each non-blank line as {column: line}, with its location under `WHERE`.

    Args:
      path: any file of text.
      column: the field of the line in its record.
      on_bad: called with the error for each line that is not UTF-8; if it returns, the line is dropped.

    Raises:
      UserError: the file cannot be read, or has no text.
    """
    lines = ((f"{path}:{number}", line) for number, line in numbered_lines(path))
    texts = read_each(lines, lambda item: {column: decoded(item[1], item[0]).strip(), WHERE: item[0]}, on_bad)
    return not_empty((record for record in texts if record[column]), path, "text")


def _rows(path: str, columns: Sequence[str], kind: str, quoted: bool, on_bad: OnBad) -> Iterator[Record]:
    """Yield rows from a .csv or .tsv file; rows with another number of fields than the header are bad."""
    rows, delimiter, quoted = _opened(path, columns, kind, quoted)
    if not rows:
        return
    if _are_numbers(columns):
        _check_no_header(rows[0], columns, path)
        [(width, _)] = Counter(len(row) for _, row in rows).most_common(1)
        header = [str(number) for number in range(max(width, 1 + max(map(int, columns))))]
    else:
        (_, header), *rows = rows
        # Hand-written files often have a space after the comma. Names that match exactly keep their spaces.
        if not set(columns) <= set(header):
            header = [name.strip() for name in header]
        _check_header(header, columns, path)
    empty = 0
    for number, row in rows:
        # Spreadsheets write rows without any text as delimiters alone.
        if not any(map(str.strip, row)):
            empty += 1
            continue
        # Concatenated files repeat the header, which would otherwise be read as one more example.
        if row == header and not _are_numbers(columns):
            on_bad(UserError(f"{path}:{number} has the names of the columns again; remove the line"))
        elif len(row) == len(header):
            yield dict(zip(header, row)) | {WHERE: f"{path}:{number}"}
        else:
            on_bad(UserError(f"{path}:{number} {_width_error(row, len(header), delimiter, quoted)}"))
    if empty:
        _note(f"{path}: empty rows skipped: {empty:,}")
    if not quoted and (count := _count_quoted([row for _, row in rows], header, columns)):
        remedy = setting_remedy("; set examples.quoted=True if a program such as pandas has written them")
        _note(f"{path}: {count:,} texts are in double quotes, which stay{remedy}")


@functools.cache
def _note(line: str) -> None:
    """Say once what was found in a file, however often a command reads it."""
    say(line, file=sys.stderr)


def _opened(
    path: str, columns: Sequence[str], kind: str, quoted: bool
) -> tuple[list[tuple[int, list[str]]], str, bool]:
    """Read a .csv or .tsv file: rows with line numbers, the delimiter, and whether quotes were parsed."""
    delimiter, has_quoted_names = _delimiter(path, columns, kind)
    quoted = quoted or has_quoted_names or delimiter != "\t"
    rows = list((_quoted if quoted else _unquoted)(path, delimiter))
    is_declared = rows and _SPREADSHEET.fullmatch(delimiter.join(rows[0][1]))
    return rows[1:] if is_declared else rows, delimiter, quoted


def _delimiter(path: str, columns: Sequence[str], kind: str) -> tuple[str, bool]:
    """Return the delimiter and whether the column names are quoted.

    A first line such as `sep=;` decides, then the required columns, then the number of fields of the first lines. The
    delimiter of the suffix comes before others.

    Args:
      columns: required columns; empty if none is known.
    """
    lines, own = _sampled(path), DELIMITERS.get(kind, ",")
    first = next(iter(lines), "")
    if spreadsheet := _SPREADSHEET.fullmatch(first):
        return spreadsheet[1], False
    marks = own, *(mark for mark in _DELIMITERS if mark != own)
    has_names = bool(columns) and not _are_numbers(columns)
    for delimiter in marks if has_names else ():
        names = first.split(delimiter)
        for header in (names, _fields([first], delimiter)[0]):
            if set(columns) <= set(header):
                _note_delimiter(path, delimiter, own)
                return delimiter, header != names
    if has_names and own in first:
        return own, False
    # Columns may have other names: then the error lists them, and not one name with all of them.
    is_numbered = bool(columns) and not has_names
    last = max(map(int, columns)) if is_numbered else 1
    # A text has other marks by chance, so for columns by number one counts only if it gives them all.
    fitting = next((mark for mark in marks if first.count(mark) >= last), own)
    other = fitting if is_numbered else max(marks, key=first.count)
    delimiter = _regular_delimiter(lines, last, marks) or (own if columns and own in first else other)
    if is_numbered:
        _note_delimiter(path, delimiter, own)
    return delimiter, False


def _sampled(path: str) -> list[str]:
    """Return the first lines that are not blank."""
    filled = ((number, line) for number, line in numbered_lines(path) if line.strip())
    return [decoded(line, f"{path}:{number}") for number, line in itertools.islice(filled, _SAMPLED)]


def _fields(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    """Return the fields of each line, without quotes; one empty line if a quote is broken."""
    try:
        return list(csv.reader(lines, delimiter=delimiter)) or [[]]
    except csv.Error:
        return [[]]


def _note_delimiter(path: str, delimiter: str, own: str) -> None:
    if delimiter != own:
        _note(f"{path}: its fields are separated by {delimiter!r}, and are read so")


def _regular_delimiter(lines: Sequence[str], last: int, marks: Sequence[str]) -> str:
    """Return the first of `marks` that gives all lines one number of fields; empty if none does.

    Args:
      lines: first lines of a table without a header.
      last: the largest column number.
      marks: delimiters, the one of the suffix first.
    """
    own = marks[0]
    for delimiter in marks:
        widths = Counter(map(len, _fields(lines, delimiter)))
        # Text has commas by chance, but no tabs: a table of tabs in which one line has another number of them is not
        # one of commas.
        if delimiter == own == "\t" and widths.most_common(1)[0][0] > max(last, 1):
            return own
        # The delimiter of the suffix is preferred even if it gives too few fields, which is then the error.
        if len(widths) == 1 and min(widths) > (min(last, 1) if delimiter == own else max(last, 1)):
            return delimiter
    return ""


def _check_no_header(first: tuple[int, list[str]], columns: Sequence[str], path: str) -> None:
    """Raise UserError if the first row holds column names where numbers are given for the columns."""
    number, row = first
    names = [row[int(column)].strip() for column in columns if int(column) < len(row)]
    if names and all(name.casefold() in _NAMES for name in names):
        shown = f"the names of the columns ({shorten(list(map(repr, names)))}), and columns are given by number"
        raise UserError(f"{path}:{number} has {shown}; give the names, or remove the line")


def _are_numbers(columns: Sequence[str]) -> bool:
    return all(column.isdecimal() for column in columns)


def _count_quoted(rows: list[list[str]], header: list[str], columns: Sequence[str]) -> int:
    """Count required fields that are fully quoted; 0 unless most fields with a quote are."""
    # Texts have quotations of their own, as in GLUE, so only quotes around whole fields count.
    places = [header.index(column) for column in columns]
    with_quote = [row[place] for row in rows for place in places if place < len(row) and '"' in row[place]]
    count = sum(map(bool, map(_IN_QUOTES.fullmatch, with_quote)))
    return count if 2 * count > len(with_quote) else 0


def _check_header(header: list[str], columns: Sequence[str], path: str) -> None:
    names = shorten([repr(name[: json_objects.SHOWN]) for name in header], limit=20)
    for column in columns:
        if column not in header:
            others = ", name one of these, or give the numbers of all, counted from 0, if the file has no header"
            remedy = flag_remedy(column) or f"rename a column{setting_remedy(others)}"
            raise UserError(f"{path} has no column {column!r}; it has {names}; {remedy}")
        if header.count(column) > 1:
            raise UserError(f"{path} has {header.count(column)} columns {column!r}; rename all but one of them")


def _width_error(row: list[str], width: int, delimiter: str, quoted: bool) -> str:
    """Describe a row with the wrong number of fields: a delimiter inside a field shifts the fields after it."""
    remedy = "give every line all columns"
    if len(row) > width:
        remedy = f"write a field with {delimiter!r} in double quotes" if quoted else f"remove {delimiter!r} in a field"
    if not quoted:
        remedy += setting_remedy(", or set examples.quoted=True if fields are in quotes")
    return f"has {len(row)} fields, not {width}; {remedy}"


def _unquoted(path: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield rows without parsing quotes, with line numbers."""
    return ((number, line.split(delimiter)) for number, line in enumerate(_text(path), start=1) if line)


def _quoted(path: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with parsed quotes and the number of their first line; a quoted field may span several lines."""
    csv.field_size_limit(_LONGEST_FIELD)
    # The csv module ends a row at a carriage return, so hide those inside of lines.
    lines = (line.replace("\r", _CARRIAGE_RETURN) + "\n" for line in _text(path))
    # Strict, because a broken quote would otherwise swallow the rows after it.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        first = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(
                f"{path}:{first}: a quote is broken ({error}); close it, or double a quote in a field"
            ) from None
        if row:
            yield first, [field.replace(_CARRIAGE_RETURN, "\r") for field in row]


def _text(path: str) -> Iterator[str]:
    """Yield decoded lines without line ends."""
    for number, line in numbered_lines(path):
        yield decoded(line, f"{path}:{number}")
