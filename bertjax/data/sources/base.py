"""Documents, the parts of a corpus that hold them, and the protocol of the formats that read a part."""

import dataclasses
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, Protocol

from etils import epath

from bertjax.data.sources.access import MIB, open_file
from bertjax.errors import Damaged, UserError
from bertjax.storage import reason_of

WHOLE_BYTES = 64 * MIB
SAMPLED_BLOCKS = 64
# The first bytes of ZIP (.docx, .xlsx) and OLE (.doc, .xls), and of text in UTF-16 with its byte order mark.
_OFFICE = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
# Byte order marks; that of UTF-32 in little-endian order starts with that of UTF-16.
_MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}

# Other formats by their first bytes, with the suffix that reads them; None if bertjax does not read them.
_ARCHIVES = {
    b"\x1f\x8b": ("gz", ".gz"),
    b"\x28\xb5\x2f\xfd": ("zst", ".zst"),
    b"\xfd7zXZ\x00": ("xz", ".xz"),
    b"BZh": ("bzip2", None),
    b"%PDF": ("PDF", None),
    b"PAR1": ("Parquet", ".parquet"),
}
# Text in UTF-16 has a zero byte in every Latin character, and UTF-32 three; in UTF-8, NUL is a rare control character.
MOST_ZEROS = 0.25

GROUP_FIELD = "data.sources.NAME.group_field"

OnRead = Callable[[int], object]
OnBad = Callable[[UserError], object]


@dataclasses.dataclass(frozen=True)
class Document:
    """One document.

    Attributes:
      part: name of its part.
      number: number of its first line, or of its record, within the part, from 1.
      text: never blank; newlines separate its paragraphs; control characters, NUL too, stay as they are.
      unit: what it is a part of, such as a book; empty if it is a unit of its own.
    """

    part: str
    number: int
    text: str
    unit: str = ""

    @property
    def id(self) -> str:
        """The name that messages and manifests use: `<part>:<number>`."""
        return f"{self.part}:{self.number}"


class Format(Protocol):
    """Reads the documents of a part; picklable, so that another process can read it."""

    def documents(self, part: "Part", progress: OnRead, on_bad: OnBad) -> Iterator[Document]:
        """Yield the documents of a part.

        Args:
          progress: called from time to time with the number of bytes read so far, of `part.size`.
          on_bad: called with the error of each bad document; if the call returns, the document is left out.

        Raises:
          Damaged: nothing after this point can be read.
          UserError: the part cannot be read for a reason outside of it (rights, network, a wrong setting).
        """
        ...


def stop(error: UserError) -> NoReturn:
    """Raise the error of a bad document: the default `on_bad`."""
    raise error


@dataclasses.dataclass(frozen=True)
class Part:
    """One file of a corpus.

    Attributes:
      name: unique in the corpus, and independent of the folder of the corpus; parts are sorted by it.
      size: bytes on disk.
    """

    path: epath.Path
    name: str
    size: int
    format: Format

    def documents(self, on_read: OnRead = lambda size: None, on_bad: OnBad = stop) -> Iterator[Document]:
        """Yield the documents. Memory is that of the largest document.

        Args:
          on_read: called with the number of bytes read since the last call; the sum is `size`.
          on_bad: called with the error of each document that is not text, of a part that is cut short (it ends there),
            and of a part without documents. If the call returns, reading continues without them.

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
        except Damaged as error:  # what follows it cannot be read; the size is that on disk
            bad(sized(error, max(0, self.size - used)))
        if empty:
            on_bad(UserError(f"{self.path} is empty; remove it from the corpus or fill it"))
        progress(self.size)

    def fingerprint(self) -> str:
        """Return the SHA-256 of name, size and content: all of it up to 64 MiB, else 64 evenly spaced blocks of 1 MiB.

        Raises:
          UserError: the file cannot be read.
        """
        digest = hashlib.sha256()
        with open_file(self.path) as file:
            length = file.seek(0, io.SEEK_END)
            digest.update(f"{self.name}\0{length}\0".encode())
            whole = length <= WHOLE_BYTES
            offsets = (0,) if whole else [i * (length - MIB) // (SAMPLED_BLOCKS - 1) for i in range(SAMPLED_BLOCKS)]
            for offset in offsets:
                file.seek(offset)
                digest.update(file.read(WHOLE_BYTES if whole else MIB))
        return digest.hexdigest()


def unread(message: str, size: int) -> UserError:
    """Return the error of a document that is not read, with the bytes of it as `size`."""
    error = UserError(message)
    error.size = size
    return error


def sized(error: UserError, size: int) -> UserError:
    """Return the error of a bad document with its bytes as `size`."""
    error.size = size
    return error


def check_encoding(head: bytes, where: str) -> None:
    """Raise `Damaged` if the first bytes of a file of text show that all of it is in another encoding.

    Its line ends are others too, so no line of it could be read alone.

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
        if head.startswith(_OFFICE):  # the header of an archive is full of zeros, too
            raise Damaged(f"{where} is not UTF-8: {_conversion(head)}")
        width = 32 if head.count(0) > 0.6 * len(head) else 16
        name = f"UTF-{width}{'BE' if head[:1] == bytes(1) else 'LE'}"
        raise Damaged(
            f"{where} is not UTF-8: {head.count(0):,} of {len(head):,} bytes are zero, as in {name} without a byte "
            f"order mark, so nothing of the file is read; convert it: iconv -f {name} -t UTF-8 OLD > NEW"
        )


def text_of(value: Any, where: str, field: str = "") -> str:
    """Return the text of a document.

    Args:
      value: the content that was read; bytes are UTF-8.
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
    """Return the text of bytes in UTF-8.

    Args:
      content: a line, a field or a whole file.
      where: its place, for the error message.

    Raises:
      UserError: the bytes are not UTF-8; the message names their format if their first bytes identify it.
    """
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"its byte {error.start} is {content[error.start]:#04x}"
        raise UserError(f"{where} is not UTF-8: {byte}; {_conversion(content)}") from None


def _conversion(content: bytes) -> str:
    """Return how content becomes UTF-8, as its first bytes tell."""
    if content.startswith(_OFFICE):
        return "it starts like a .docx, .xlsx or .doc; save it as plain text in UTF-8"
    for mark, name in _MARKS.items():
        if content.startswith(mark):
            return f"it starts like {name}; convert the file: iconv -f {name} -t UTF-8 OLD > NEW"
    for mark, (name, suffix) in _ARCHIVES.items():
        if content.startswith(mark):
            remedy = f"end its name with {suffix}" if suffix else "extract it"
            return f"it starts like a file in the {name} format; {remedy}"
    encodings = (
        "ENCODING may be WINDOWS-1252 (Western), WINDOWS-1251 or KOI8-R (Cyrillic), CP949 (Korean), SHIFT_JIS or "
        "EUC-JP (Japanese), GB18030 or BIG5 (Chinese)"
    )
    return f"convert the file: iconv -f ENCODING -t UTF-8 OLD > NEW, and read NEW; {encodings}"


def check_surrogates(text: str, what: str) -> None:
    """Raise UserError if a text holds a lone surrogate, which JSON can write and UTF-8 cannot.

    Args:
      text: a text that was read from JSON.
      what: its place, for the error message.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{what} holds a lone surrogate, which is not text; remove it") from None


def json_of(content: bytes, path: str) -> Any:
    """Return what a JSON file holds.

    Raises:
      UserError: the content is not JSON in UTF-8; the message names the line.
    """
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno} is not JSON ({error.msg}); correct the file") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line} is not UTF-8 ({error.reason}); {_conversion(content)}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of nested lists
        raise UserError(f"{path} is not JSON that can be read ({reason_of(error)}); correct the file") from None


def object_of(line: bytes, where: str, field: str) -> dict[str, Any]:
    """Return the JSON object of a line of a .jsonl file.

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
    """Return the error of a record or a table without the field `field`, which `setting` names."""
    names = ", ".join(repr(name)[1:-1] for name in fields[:20]) or "none"
    return UserError(f"{where} has no field {field!r} (it has {names}); set {setting}")


def unit_of(record: Mapping[str, Any], field: str, where: str) -> str:
    """Return what a document is a part of, from the field `field` of its record; empty if there is no such setting.

    Raises:
      UserError: the record has no such field, or nothing in it.
    """
    if not field:
        return ""
    if record.get(field) in (None, ""):
        raise no_field(where, field, [name for name in record if record[name] not in (None, "")], GROUP_FIELD)
    return str(record[field])
