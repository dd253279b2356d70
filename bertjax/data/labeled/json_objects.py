"""Objects as records: JSON in lines or in one array, and the rows of Parquet, known by content and not by the name."""

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from bertjax.data.labeled.base import WHERE, Record, flag_remedy
from bertjax.data.sources.base import OnBad, check_surrogates, json_of, object_of, read_each
from bertjax.data.sources.lines import COMPRESSIONS, numbered_lines
from bertjax.data.sources.tables import rows
from bertjax.runtime.errors import UserError, shorten
from bertjax.runtime.storage import place_of

SUFFIXES = (".jsonl", ".json")
PARQUET = ".parquet"
# A sentence with tags, for messages.
TAGGED = '{"tokens": ["Ada", "ran"], "tags": ["B-PER", "O"]}'
# Messages show this many characters of a field name.
SHOWN = 40


def holds_objects(path: str) -> bool:
    """Return whether a file has the suffix of JSON or Parquet, or starts with a JSON object, or is an array of them."""
    return kind_of(path) in (*SUFFIXES, PARQUET) or _is_object(first_line(path)[1]) or holds_array(path)


def holds_array(path: str) -> bool:
    """Return whether a file is a JSON array of objects."""
    return first_line(path)[1].lstrip()[:1] == b"[" and _array_of(path) is not None


def kind_of(path: str) -> str:
    """Return the suffix below a compression suffix in lower case, such as `.csv` for `a.CSV.gz`."""
    suffixes = [suffix for suffix in map(str.lower, PurePath(path).suffixes) if suffix not in COMPRESSIONS]
    return suffixes[-1] if suffixes else ""


def first_line(path: str) -> tuple[int, bytes]:
    """Return the number and content of the first non-blank line."""
    return next(((number, line) for number, line in numbered_lines(path) if line.strip()), (1, b""))


def read(path: str, columns: Sequence[str], on_bad: OnBad) -> Iterator[Record]:
    """Yield a file's objects with their locations under `WHERE`; content decides between JSON lines and an array.

    Args:
      path: a JSON file with any suffix, plain, .gz, .zst or .xz.
      columns: required fields.
      on_bad: called with the error for each bad object; if it returns, the object is dropped.

    Raises:
      UserError: the file cannot be read or is not JSON.
    """
    if kind_of(path) == PARQUET:
        return _array(value_of(path), path, columns, on_bad)
    # Many tools write JSON lines into .json files, and arrays into .jsonl files.
    first = first_line(path)[1].lstrip()
    filled = (line for _, line in numbered_lines(path) if line.strip())
    if kind_of(path) == ".json" and not (_is_object(first) and len(list(itertools.islice(filled, 2))) == 2):
        return _array(value_of(path), path, columns, on_bad)
    if first[:1] == b"[" and (values := _array_of(path)) is not None:
        return _array(values, path, columns, on_bad)
    lines = ((f"{path}:{number}", line) for number, line in numbered_lines(path) if line.strip())
    return read_each(
        lines, lambda item: _checked(object_of(item[1], item[0], _form(columns)), item[0], columns), on_bad
    )


def content_of(path: str) -> bytes:
    """Return a whole file, with lines as `numbered_lines` gives them."""
    return b"\n".join(line for _, line in numbered_lines(path))


def value_of(path: str) -> Any:
    """Return what a JSON file holds, or the rows of a Parquet file.

    Raises:
      UserError: the file cannot be read.
    """
    return rows(place_of(path)) if kind_of(path) == PARQUET else json_of(content_of(path), path)


def parsed(content: bytes) -> Any:
    """Return the value that JSON holds; None if the content is something else."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _is_object(line: bytes) -> bool:
    """Return whether a line is a complete JSON object."""
    return line.lstrip()[:1] == b"{" and isinstance(parsed(line), dict)


def _array_of(path: str) -> list[Any] | None:
    """Return the file's JSON array of objects; None if it holds something else."""
    values = parsed(content_of(path))
    return values if isinstance(values, list) and any(isinstance(value, dict) for value in values) else None


def _array(values: Any, path: str, columns: Sequence[str], on_bad: OnBad) -> Iterator[Record]:
    if not isinstance(values, list):
        raise UserError(f"{path} is not an array of objects: it is {str(values)[:40]!r}; write [{{...}}, ...]")

    def record_of(numbered: tuple[int, Any]) -> Record:
        where, value = f"{path}: object {numbered[0]}", numbered[1]
        if not isinstance(value, dict):
            raise UserError(f"{where} is {str(value)[:40]!r}; write {_form(columns)}")
        return _checked(value, where, columns)

    return read_each(enumerate(values, start=1), record_of, on_bad)


def _form(columns: Sequence[str]) -> str:
    """Return how an object with these fields looks; without any, it is a sentence with tags."""
    return f"{{{columns[0]!r}: ...}}" if columns else TAGGED


def _checked(record: dict[str, Any], where: str, columns: Sequence[str]) -> Record:
    if missing := [column for column in columns if column not in record]:
        names = shorten([repr(name[:SHOWN]) for name in record], limit=20)
        remedy = flag_remedy(missing[0]) or "the name"
        raise UserError(f"{where} has no field {missing[0]!r}, it has {names}; correct the line, or {remedy}")
    for column in columns:
        texts = record[column] if isinstance(record[column], list) else [record[column]]
        check_surrogates(" ".join(text for text in texts if isinstance(text, str)), f"{where}: {column}")
    return record | {WHERE: where}
