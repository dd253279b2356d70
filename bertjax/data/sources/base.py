"""Documents, corpus parts, the protocol for format readers, and bad documents, which stop it or are counted."""

import dataclasses
import hashlib
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn, Protocol, TypeVar, cast

from etils import epath
from tqdm import tqdm

from bertjax.data.sources.access import MIB, open_file
from bertjax.runtime.errors import Damaged, UserError, printable
from bertjax.runtime.storage import reason_of

WHOLE_BYTES = 64 * MIB
SAMPLED_BLOCKS = 64
# Magic bytes of ZIP (.docx, .xlsx) and OLE (.doc, .xls).
_OFFICE = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
# Byte order marks, the longer ones first: little-endian UTF-32 starts with the mark for UTF-16.
_MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}

# Other formats by magic bytes, with the suffix under which bertjax reads them, or None.
ARCHIVES = {
    b"\x1f\x8b": ("gz", ".gz"),
    b"\x28\xb5\x2f\xfd": ("zst", ".zst"),
    b"\xfd7zXZ\x00": ("xz", ".xz"),
    b"BZh": ("bzip2", None),
    b"%PDF": ("PDF", None),
    b"PAR1": ("Parquet", ".parquet"),
}
# Latin text has one zero byte per character in UTF-16 and three in UTF-32; in UTF-8, NUL is a rare control character.
MOST_ZEROS = 0.25

GROUP_FIELD = "data.sources.NAME.group_field"

OnRead = Callable[[int], object]
Item = TypeVar("Item")
Result = TypeVar("Result")
OnBad = Callable[[UserError], object]


@dataclasses.dataclass(frozen=True)
class Document:
    """One document.

    Attributes:
      part: name of the part that holds it.
      number: first line number, or record number, within the part, from 1.
      text: never blank; newlines separate paragraphs; control characters, NUL included, stay as they are.
      unit: what it belongs to, such as a book; empty if it stands alone.
    """

    part: str
    number: int
    text: str
    unit: str = ""

    @property
    def id(self) -> str:
        """Name for messages and manifests: `<part>:<number>`."""
        return f"{self.part}:{self.number}"


class Format(Protocol):
    """Reader for one file format; picklable, so that any process can read a part."""

    def documents(self, part: "Part", progress: OnRead, on_bad: OnBad) -> Iterator[Document]:
        """Yield a part's documents.

        Args:
          progress: called from time to time with the bytes read so far, at most `part.size`.
          on_bad: called with an error for each bad document; if the call returns, the document is left out.

        Raises:
          Damaged: nothing after this point can be read.
          UserError: the part cannot be read for an external reason (rights, network, a wrong setting).
        """
        ...


def stop(error: UserError) -> NoReturn:
    """Raise the error; the default `on_bad`."""
    raise error


def read_each(items: Iterable[Item], read: Callable[[Item], Result], on_bad: OnBad) -> Iterator[Result]:
    """Yield `read(item)` for each item; an item whose reading raises UserError is left out if `on_bad` returns."""
    for item in items:
        try:
            result = read(item)
        except UserError as error:
            on_bad(error)
        else:
            yield result


@dataclasses.dataclass(frozen=True)
class Part:
    """One file in a corpus.

    Attributes:
      name: unique in the corpus and relative to its folder, so that moving the corpus changes nothing; the sort key.
      size: bytes on disk.
    """

    path: epath.Path
    name: str
    size: int
    format: Format

    def documents(self, on_read: OnRead = lambda size: None, on_bad: OnBad = stop) -> Iterator[Document]:
        """Yield the documents, holding one in memory at a time.

        Args:
          on_read: called with the bytes read since the last call; they add up to `size`.
          on_bad: called with an error for each document that is not text, for a part that is cut short (it ends there),
            and for a part without documents. If the call returns, reading continues without them.

        Raises:
          UserError: `on_bad` raised it, or the part cannot be read at all.
        """
        used, empty = 0, True

        def progress(position: int) -> None:
            nonlocal used
            on_read(position - used)
            used = position

        def bad(error: UserError) -> None:
            nonlocal empty
            empty = False
            on_bad(error)

        try:
            for document in self.format.documents(self, progress, bad):
                empty = False
                yield document
        except Damaged as error:  # nothing after it can be read, so all remaining bytes on disk count as bad
            bad(sized(error, max(0, self.size - used)))
        if empty:
            on_bad(UserError(f"{self.path} is empty; remove it from the corpus or fill it"))
        progress(self.size)

    def fingerprint(self) -> str:
        """Return a SHA-256 over name, size and content: everything up to 64 MiB, else 64 evenly spaced 1 MiB blocks.

        Raises:
          UserError: the file cannot be read.
        """
        digest = hashlib.sha256()
        with open_file(self.path) as file:
            length = file.seek(0, io.SEEK_END)
            digest.update(f"{self.name}\0{length}\0".encode())
            # Reading all of a large corpus twice would cost hours; blocks from the whole file show most rewrites.
            whole = length <= WHOLE_BYTES
            offsets = (0,) if whole else [i * (length - MIB) // (SAMPLED_BLOCKS - 1) for i in range(SAMPLED_BLOCKS)]
            for offset in offsets:
                file.seek(offset)
                digest.update(file.read(WHOLE_BYTES if whole else MIB))
        return digest.hexdigest()


def sized(error: UserError, size: int) -> UserError:
    """Return the error for a bad document, with its byte count as `size`."""
    cast(Any, error).size = size
    return error


def check_encoding(head: bytes, where: str) -> None:
    """Raise `Damaged` if a text file's first bytes show that all of it is UTF-16 or UTF-32.

    Line ends differ in those encodings too, so skipping single lines would not help.

    Args:
      head: the first line.
      where: file and line, for the error message.
    """
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            raise Damaged(
                f"{where} is not UTF-8: its byte 0 is {head[0]:#04x}; it starts like {name}, so nothing of the file is "
                f"read; convert it: iconv -f {name} -t UTF-8 OLD > NEW"
            )
    if len(head) > 1 and head.count(0) > MOST_ZEROS * len(head):
        if head.startswith((*_OFFICE, *ARCHIVES)):  # the header of an archive may be full of zeros, too
            raise Damaged(f"{where} is not UTF-8: {_conversion(head)}")
        width = 32 if head.count(0) > 0.6 * len(head) else 16
        name = f"UTF-{width}{'BE' if head[:1] == bytes(1) else 'LE'}"
        raise Damaged(
            f"{where} is not UTF-8: {head.count(0):,} of {len(head):,} bytes are zero, as in {name} without a byte "
            f"order mark, so nothing of the file is read; convert it: iconv -f {name} -t UTF-8 OLD > NEW"
        )


def text_of(value: Any, where: str, field: str = "") -> str:
    """Check that a value is text, and return it as a string.

    Args:
      value: content that was read; bytes are UTF-8.
      where: file and line or record, for the error message.
      field: name of the field that holds `value`.

    Raises:
      UserError: `value` is not text, is blank, is not UTF-8 or holds a lone surrogate.
    """
    what = f"{where}: field {field!r}" if field else where
    if isinstance(value, bytes):
        value = decoded(value, what)
    elif not isinstance(value, str):
        shown = "null" if value is None else repr(str(value)[:40])
        raise UserError(f"{what} is {shown}, not a string; correct it, or set data.text_field")
    else:
        check_surrogates(value, what)
    if not value.strip():
        raise UserError(f"{what} is blank; remove it")
    return value


def decoded(content: bytes, where: str) -> str:
    """Decode UTF-8.

    Args:
      content: a line, a field or a whole file.
      where: its place, for the error message.

    Raises:
      UserError: the bytes are not UTF-8; the message names their format if the magic bytes identify it.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"its byte {error.start} is {content[error.start]:#04x}"
        raise UserError(f"{where} is not UTF-8: {byte}; {_conversion(content)}") from None


def _conversion(content: bytes) -> str:
    """Return the remedy for content that is not UTF-8, judged by its first bytes."""
    if content.startswith(_OFFICE):
        return "it starts like a .docx, .xlsx or .doc; save it as plain text in UTF-8"
    for mark, name in _MARKS.items():
        if content.startswith(mark):
            return f"it starts like {name}; convert the file: iconv -f {name} -t UTF-8 OLD > NEW"
    for mark, (name, suffix) in ARCHIVES.items():
        if content.startswith(mark):
            remedy = f"end its name with {suffix}" if suffix else "extract it"
            return f"it starts like a file in the {name} format; {remedy}"
    encodings = (
        "ENCODING may be WINDOWS-1252 (Western), WINDOWS-1251 or KOI8-R (Cyrillic), CP949 (Korean), SHIFT_JIS or "
        "EUC-JP (Japanese), GB18030 or BIG5 (Chinese)"
    )
    return f"convert the file: iconv -f ENCODING -t UTF-8 OLD > NEW, and read NEW; {encodings}"


def check_surrogates(text: str, what: str) -> None:
    """Raise UserError if a text from JSON holds a lone surrogate, which JSON can escape but UTF-8 cannot encode.

    Args:
      text: the text.
      what: its place, for the error message.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{what} holds a lone surrogate, which is not text; remove it") from None


def json_of(content: bytes, path: str) -> Any:
    """Parse the content of a JSON file.

    Raises:
      UserError: the content is not JSON in UTF-8; the message names the line.
    """
    try:
        return json.loads(str(content, "utf-8-sig"))  # bytes may be UTF-16
    except json.JSONDecodeError as error:
        what = f"{error.msg} in column {error.colno}"
        raise UserError(f"{path}:{error.lineno} is not JSON ({what}); correct the file") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line} is not UTF-8 ({error.reason}); {_conversion(content)}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of nested lists
        raise UserError(f"{path} is not JSON that can be read ({reason_of(error)}); correct the file") from None


def object_of(line: bytes, where: str, field: str) -> dict[str, Any]:
    """Parse one .jsonl line as a JSON object.

    Args:
      line: the line without its line end.
      where: file and line, for the error message.
      field: a field that the object should have, for the error message.

    Raises:
      UserError: the line is not a JSON object.
    """
    try:
        record = json.loads(text_of(line, where))
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where} is not JSON ({reason_of(error)}); a .jsonl file holds one JSON object a line"
        ) from None
    if not isinstance(record, dict):
        raise UserError(f"{where} is not a JSON object but {str(record)[:40]!r}; write {{{field!r}: ...}}")
    return record


def no_field(where: str, field: str, fields: list[str], setting: str = "data.text_field") -> UserError:
    """Return an error for a record or table that lacks `field`, the value of `setting`."""
    names = ", ".join(repr(name)[1:-1] for name in fields[:20]) or "none"
    return UserError(f"{where} has no field {field!r} (it has {names}); set {setting}")


def unit_of(record: Mapping[str, Any], field: str, where: str) -> str:
    """Return a document's unit, read from `field` in its record; empty if no field is set.

    Raises:
      UserError: the record lacks the field, or the field is empty.
    """
    if not field:
        return ""
    if _is_missing(record.get(field)):
        raise no_field(where, field, [name for name in record if not _is_missing(record[name])], GROUP_FIELD)
    return str(record[field])


def _is_missing(value: Any) -> bool:
    is_nan = isinstance(value, float) and value != value  # how pandas writes a missing value
    return value is None or is_nan or (isinstance(value, (str, bytes)) and not value)


LISTED = 5


@dataclasses.dataclass
class BadRecords:
    """Counter for bad records. With `stop` the first one raises; with `skip` all are counted and the first listed.

    Attributes:
      on_bad: `stop` or `skip`.
      what: plural noun for messages, such as `documents`.
      remedy: ending for the error message under `stop`.
      skipped: number of skipped records, by source.
    """

    on_bad: str
    what: str
    remedy: str = ""
    skipped: dict[str, int] = dataclasses.field(default_factory=dict)

    def add(self, source: str, error: UserError) -> None:
        """Count a bad record.

        Raises:
          UserError: bad records stop the program.
        """
        if self.on_bad == "stop":
            raise UserError(f"{error}{self.remedy}") if self.remedy else error
        self.skipped[source] = self.skipped.get(source, 0) + 1
        number = sum(self.skipped.values())
        if number <= LISTED:
            tqdm.write(f"skipped: {printable(str(error))}", file=sys.stderr)
        if number == LISTED:
            tqdm.write(f"further bad {self.what} are counted but not listed", file=sys.stderr)
