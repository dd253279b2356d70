"""Records to predict: from a list of texts, a file or a stream, each knowing where it came from."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from bertjax.data.labeled.base import WHERE, Record
from bertjax.data.sources.access import reason_of
from bertjax.data.sources.base import object_of, text_of
from bertjax.data.sources.lines import BYTE_ORDER_MARK
from bertjax.errors import UserError


def records_of(texts: Sequence[str], field: str = "text") -> list[Record]:
    """Texts as records, each under the name of a field.

    Raises:
      UserError: one of them is blank or no text.
    """
    if isinstance(texts, str):
        raise UserError(f"{texts[:40]!r} is one text; give a list of texts")
    return checked([{field: text} for text in texts], (field,))


def checked(records: Sequence[Record], fields: Sequence[str]) -> list[Record]:
    """Records with their numbers, from 1, as the places where they stand.

    Raises:
      UserError: one of them lacks a field, or holds no text there.
    """
    return [_checked(record, f"text {number}", fields) for number, record in enumerate(records, start=1)]


def read_lines(lines: Iterable[bytes], name: str, field: str) -> list[Record]:
    """Texts, one a line.

    Args:
      lines: with their ends, in UTF-8.
      name: of their file.
      field: that a text gets in its record.

    Raises:
      UserError: a line that is blank or no text.
    """
    return [{field: text_of(line, where), WHERE: where} for where, line in _numbered(lines, name)]


def read_objects(lines: Iterable[bytes], name: str, fields: Sequence[str]) -> list[Record]:
    """JSON objects, one a line.

    Args:
      lines: with their ends, in UTF-8.
      name: of their file.
      fields: those that must be there and hold text.

    Raises:
      UserError: a line that is no such object.
    """
    return [_checked(object_of(line, where, fields[0]), where, fields) for where, line in _numbered(lines, name)]


def read_file(path: str, fields: Sequence[str]) -> list[Record]:
    """The records of a file: JSON objects where its name ends with .jsonl, else texts, one a line.

    Raises:
      UserError: the file cannot be read, holds a line that is no record, or has columns, or lines of text where records
        have several fields.
    """
    if path.endswith((".tsv", ".csv")):
        raise UserError(f"{path} has columns, and each line would be read as one text; write its rows as .jsonl")
    try:
        with Path(path).expanduser().open("rb") as file:
            return (
                read_objects(file, path, fields) if path.endswith(".jsonl") else read_lines(file, path, the_one(fields))
            )
    except OSError as error:
        raise UserError(f"{path} cannot be read: {reason_of(error)}; name a file of text or a .jsonl file") from None


def the_one(fields: Sequence[str]) -> str:
    """The field of records that have one alone.

    Raises:
      UserError: they have several, which a plain text cannot be.
    """
    if len(fields) > 1:
        raise UserError(f"the model reads {' and '.join(map(repr, fields))} together; give a .jsonl file that has both")
    return fields[0]


def _numbered(lines: Iterable[bytes], name: str) -> Iterable[tuple[str, bytes]]:
    for number, line in enumerate(lines, start=1):
        yield f"{name}:{number}", (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).rstrip(b"\r\n")


def _checked(record: Record, where: str, fields: Sequence[str]) -> Record:
    for field in fields:
        if field not in record:
            held = ", ".join(map(repr, record)) or "none"
            raise UserError(f"{where} has no field {field!r} (it has {held}); rename the one that holds it")
        if not isinstance(record[field], str):
            raise UserError(f"{where}: {field!r} is {str(record[field])[:40]!r}, no string; write it in quotes")
        text_of(record[field], where)
    return record | {WHERE: where}
