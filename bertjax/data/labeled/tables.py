"""Records from tables with named columns: .tsv, .csv and .jsonl files, plain or compressed."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from etils import epath

from bertjax.data.labeled.base import WHERE, Record
from bertjax.data.sources.base import OnBad, object_of, stop
from bertjax.data.sources.lines import COMPRESSIONS, numbered_lines
from bertjax.errors import UserError

_DELIMITERS = {".tsv": "\t", ".csv": ","}


def read(path: str, columns: Sequence[str], quoted: bool = False, on_bad: OnBad = stop) -> list[Record]:
    """Return the rows of a table, each as {column: text} with its place under `WHERE`.

    The first line of a .tsv or .csv names the columns. If all of `columns` are numbers, they are counted from 0 and
    there is no such line (as in GLUE's CoLA). A .tsv has no quotes unless `quoted`; a .csv always has.

    Args:
      path: a .tsv, .csv or .jsonl file, plain, .gz, .zst or .xz.
      columns: the required columns.
      quoted: whether a field of a .tsv may be in double quotes.
      on_bad: called with the error of each line that is not a row of the table; if the call returns, it is left out.

    Raises:
      UserError: the file or a column is missing, or no row is left.
    """
    if not path:
        raise UserError("examples.train or examples.heldout is empty; name a .tsv, .csv or .jsonl file for each")
    suffixes = [suffix for suffix in PurePath(path).suffixes if suffix not in COMPRESSIONS]
    kind = suffixes[-1] if suffixes else ""
    if kind == ".jsonl":
        records = list(_objects(path, columns, on_bad))
    elif kind in _DELIMITERS:
        records = list(_rows(path, columns, _DELIMITERS[kind], quoted or kind == ".csv", on_bad))
    else:
        raise UserError(f"{path} is not a table; its name must end with .tsv, .csv or .jsonl (and .gz, .zst or .xz)")
    if not records:
        raise UserError(f"{path} has no rows; give a file with at least one")
    return records


def _rows(path: str, columns: Sequence[str], delimiter: str, quoted: bool, on_bad: OnBad) -> Iterator[Record]:
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(_text(path), delimiter=delimiter, quoting=quoting, strict=quoted)
    header = None
    if all(column.isdecimal() for column in columns):
        header = [str(number) for number in range(1 + max(map(int, columns)))]
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
        if header is None:
            header = row
            if missing := [column for column in columns if column not in header]:
                raise UserError(f"{path} has no column {missing[0]!r}; it has {', '.join(map(repr, header))}")
            continue
        if not row:
            continue
        if len(row) < len(header):
            on_bad(
                UserError(
                    f"{path}:{first} has {len(row)} fields, not {len(header)}; give every line all columns"
                    + ("" if quoted else ", or set examples.quoted=True if fields are in quotes")
                )
            )
            continue
        values = dict(zip(header, row))
        yield {column: values[column] for column in columns} | {WHERE: f"{path}:{first}"}


def _objects(path: str, columns: Sequence[str], on_bad: OnBad) -> Iterator[Record]:
    for number, line in numbered_lines(epath.Path(path)):
        if line.strip():
            try:
                record = _object(line, f"{path}:{number}", columns)
            except UserError as error:
                on_bad(error)
            else:
                yield record


def _object(line: bytes, where: str, columns: Sequence[str]) -> Record:
    record = object_of(line, where, columns[0])
    if missing := [column for column in columns if column not in record]:
        raise UserError(
            f"{where} has no field {missing[0]!r}, it has {', '.join(map(repr, record))}; correct the line or the name"
        )
    return {column: record[column] for column in columns} | {WHERE: where}


def _text(path: str) -> Iterator[str]:
    """Yield lines as text with their ends, because a quoted field may span several lines."""
    for number, line in numbered_lines(epath.Path(path)):
        try:
            yield line.decode("utf-8") + "\n"
        except UnicodeDecodeError as error:
            raise UserError(f"{path}:{number} is not UTF-8 ({error.reason}); convert the file") from None
