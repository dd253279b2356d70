"""Documents, corpus parts and their format readers, bad documents, and files that are opened with one-line errors."""

import contextlib
import dataclasses
import hashlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn, Protocol, TypeVar, cast

from etils import epath
from tqdm import tqdm

from bertjax.runtime import storage, untrusted
from bertjax.runtime.errors import Damaged, UserError, printable
from bertjax.runtime.storage import reason_of

T = TypeVar("T")

MIB = 1 << 20


def open_file(path: epath.Path) -> io.BufferedReader:
    """Open a local or remote file for reading. Transient failures are retried; what remains raises `UserError`."""
    return io.BufferedReader(_File(path), MIB)


class _File(io.RawIOBase):
    """A binary file with one-line errors on every file system. After a failure it is reopened at the same offset."""

    def __init__(self, path: epath.Path):
        self._path, self._position = path, 0
        self._file: Any = None  # while it is not open
        self._attempt(lambda file: None)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        count = self._attempt(lambda file: file.readinto(buffer))
        self._position += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = self._attempt(lambda file: file.seek(offset, whence))
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._file:
                self._file.close()

    def _attempt(self, action: Callable[[Any], T]) -> T:
        """Run an action on the file, with retries, at the position where the last action left it."""

        def attempt() -> T:
            if self._file is None:  # first use, or a failure has closed it: a broken stream cannot be trusted to seek
                self._file = self._path.open("rb")
                self._file.seek(self._position)
            try:
                return action(self._file)
            except Exception:
                self._file = None  # the next attempt opens the file again
                raise

        with foreign(f"{self._path} cannot be read", "check the path and your rights"):
            return storage.retry(attempt, self._path)


@contextlib.contextmanager
def foreign(what: str, remedy: str) -> Iterator[None]:
    """Turn any error that another library raises (network, rights, its own checks) into one that starts with `what`.

    Raises:
      Unavailable: the network or a server failed in a way that may pass.
      UserError: anything else.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, ImportError) or isinstance(error.__cause__, ImportError):
            remedy = "install it, or everything that corpora need with pip install '.[data,gcs,tfds]'"
        raise storage.user_error(error, what, remedy) from error


@contextlib.contextmanager
def extra(what: str) -> Iterator[None]:
    """Wrap the import of an optional library; if it is missing, the error names the command to install it."""
    try:
        yield
    except ImportError as error:
        name = "tfds" if error.name == "tensorflow_datasets" else "data"
        raise UserError(f"{what} needs {error.name}, which is not installed; pip install '.[{name}]'") from error


WHOLE_BYTES = 64 * MIB
SAMPLED_BLOCKS = 64
# Formats by a pattern of the bytes with which files start, with a remedy; of two that fit, the first. Little-endian
# UTF-32 starts with the mark for UTF-16, and .docx, .xlsx and .ods are .zip.
_RECODE = "convert it: iconv -f {} -t UTF-8 OLD > NEW"
_SAVE, _EXTRACT = "save it in UTF-8 from its program, text as .txt, a table of labels as .csv", "extract it"
FORMATS = {
    re.escape(untrusted.GIT_LFS): untrusted.POINTER,
    rb"\xff\xfe\0\0|\0\0\xfe\xff": ("UTF-32", _RECODE.format("UTF-32")),
    rb"\xff\xfe|\xfe\xff": ("UTF-16", _RECODE.format("UTF-16")),
    rb"PK\x03\x04.{26}(\[Content_Types\]|_rels/|docProps/|xl/|word/|mimetype)": ("a spreadsheet or document", _SAVE),
    rb"\xd0\xcf\x11\xe0": ("a .doc or .xls", _SAVE),
    rb"PK\x03\x04": ("a .zip archive", _EXTRACT),
    rb".{257}ustar[\0 ]": ("a .tar archive", _EXTRACT),
    rb"7z\xbc\xaf": ("a .7z archive", _EXTRACT),
    rb"Rar!\x1a": ("a .rar archive", _EXTRACT),
    rb"BZh\d1AY": ("bzip2", _EXTRACT),
    rb"\x1f\x8b": ("gz", "end its name with .gz"),
    rb"\x28\xb5\x2f\xfd": ("zst", "end its name with .zst"),
    rb"\xfd7zXZ\x00": ("xz", "end its name with .xz"),
    rb"%PDF-\d": ("PDF", "extract its text"),
    rb"PAR1[^ -~]": ("Parquet", "end its name with .parquet"),
    rb"ARROW1\0": ("Arrow", "write it as .parquet"),
    rb"SQLite format 3\0": ("a database", "export the table as .csv"),
}
_ENCODINGS = (
    "ENCODING may be WINDOWS-1252 (Western), WINDOWS-1251 or KOI8-R (Cyrillic), CP949 (Korean), SHIFT_JIS or "
    "EUC-JP (Japanese), GB18030 or BIG5 (Chinese)"
)
HEAD = 512  # bytes that show the format
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


@dataclasses.dataclass(frozen=True)
class OfFields:
    """Base class of formats whose documents have fields.

    Attributes:
      text_field: field, column or feature that holds the document.
      group_field: the one that holds its unit; empty if there is none.
    """

    text_field: str
    group_field: str = dataclasses.field(default="", kw_only=True)


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


def documents_of(
    part: Part, items: Iterable[tuple[int, Item, int]], read: Callable[[Item, str], tuple[str, str]], on_bad: OnBad
) -> Iterator[Document]:
    """Yield a document for each item that can be read.

    Args:
      items: (number, content, bytes).
      read: returns text and unit, given the content and its place for error messages.
      on_bad: called with the error for each other item.
    """
    path = str(part.path)  # once, because epath rebuilds the string on every call
    for number, content, size in items:
        try:
            text, unit = read(content, f"{path}:{number}")
        except UserError as error:
            on_bad(sized(error, size))
        else:
            yield Document(part.name, number, text, unit)


def sized(error: UserError, size: int) -> UserError:
    """Return the error for a bad document, with its byte count as `size`."""
    cast(Any, error).size = size
    return error


def check_text(head: bytes, path: str) -> None:
    """Raise `Damaged` if a file's first bytes show that it is not text in UTF-8, or stands for another file.

    Skipping single lines would not help: all of it is in another format.
    """
    name, remedy = format_of(head)
    line = head[: head.find(b"\n") + 1] or head
    if not name and len(line) > 1 and line.count(0) > MOST_ZEROS * len(line):
        remedy = _RECODE.format("UTF-16LE") + ", or UTF-16BE, UTF-32LE or UTF-32BE"
        name = "UTF-16 or UTF-32 without a byte order mark: it is full of zero bytes"
    if name:
        raise Damaged(f"{path} looks like {name} and not like text in UTF-8; {remedy}")


def format_of(head: bytes) -> tuple[str, str]:
    """Return the format that a file's first bytes show, and the remedy; empty if they show none."""
    return next((found for mark, found in FORMATS.items() if re.match(mark, head, re.DOTALL)), ("", ""))


def undecodable(path: epath.Path, kind: str, reason: str, remedy: str = "fetch it again") -> Damaged:
    """Return the error for a file that is not in the format of its suffix, of which its first bytes may show another.

    Args:
      path: the file.
      kind: the format of its suffix.
      reason: why it cannot be read.
      remedy: what helps unless it is another format.
    """
    with path.open("rb") as file:
        name, other = format_of(file.read(HEAD))
    if name and not other.endswith(path.suffix.lower()):
        reason, remedy = f"it looks like {name}", other
    return Damaged(f"{path} is cut short, damaged or not in the {kind} format ({reason}); {remedy}")


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
      UserError: the bytes are not UTF-8.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"its byte {error.start} is {content[error.start]:#04x}"
        remedy = f"{_RECODE.format('ENCODING')}, and read NEW; {_ENCODINGS}"
        raise UserError(f"{where} is not UTF-8: {byte}; {remedy}") from None


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


# For objects of several lines, joined objects, and arrays.
_JSON_LINES = "one JSON object a line: jq -cs 'flatten[]' OLD > NEW"


def json_of(content: bytes, path: str) -> Any:
    """Parse the content of a JSON file.

    Raises:
      UserError: the content is not JSON in UTF-8; the message names the line.
    """
    text = decoded(content, path).removeprefix("\ufeff")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, thousands of nested lists
        remedy = f"correct the file, or write {_JSON_LINES}"
        raise UserError(f"{path} is not JSON that can be read ({reason_of(error)}); {remedy}") from None


def object_of(line: bytes, where: str, form: str) -> dict[str, Any]:
    """Parse one .jsonl line as a JSON object.

    Args:
      line: the line without its line end.
      where: file and line, for the error message.
      form: how the object should look, for the error message.

    Raises:
      UserError: the line is not a JSON object.
    """
    try:
        record = json.loads(text_of(line, where))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({reason_of(error)}); write {_JSON_LINES}") from None
    if not isinstance(record, dict):
        if isinstance(record, list) and all(isinstance(entry, dict) for entry in record):
            form = _JSON_LINES
        raise UserError(f"{where} is not a JSON object but {str(record)[:40]!r}; write {form}")
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
    value = record[field]  # 7.0 is 7, as pandas writes it beside missing values
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


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
