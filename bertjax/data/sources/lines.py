"""Files of lines, plain or compressed: text and JSON lines."""

import dataclasses
import functools
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator

from etils import epath

from bertjax.data.sources.access import MIB, extra, open_file
from bertjax.data.sources.base import (
    Document,
    OnBad,
    OnRead,
    Part,
    check_encoding,
    no_field,
    object_of,
    sized,
    text_of,
    unit_of,
    unread,
)
from bertjax.errors import Damaged, UserError
from bertjax.storage import reason_of

COMPRESSIONS = (".gz", ".zst", ".xz")
# A line, or a document of lines, is held in memory. A small archive can hold a line of any length.
LONGEST_BYTES = 1 << 30
# What is kept of a longer line.
KEPT_BYTES = 1 << 10
# The first bytes of each kind of archive.
_STARTS = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd", ".xz": b"\xfd7zXZ\x00", ".bz2": b"BZh"}
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True)
class Text:
    """Plain text: a blank line ends a document, a line is a sentence or a paragraph. A lone CR also ends a line."""

    def documents(self, part: Part, progress: OnRead, on_bad: OnBad) -> Iterator[Document]:
        path = str(part.path)  # which epath puts together each time
        for first, paragraphs, size in _paragraphs(part, progress):
            where = f"{path}:{first}"
            if size > LONGEST_BYTES:
                what = "a line" if len(paragraphs) == 1 else "a document"
                remedy = "break it into lines" if len(paragraphs) == 1 else "end documents with a blank line"
                on_bad(_too_long(f"{where}: {what}", size, remedy))
                continue
            try:
                text = text_of(b"\n".join(paragraphs), where)
            except UserError as error:
                on_bad(sized(error, size))
            else:
                yield Document(part.name, first, text)


@dataclasses.dataclass(frozen=True)
class JsonLines:
    """One JSON object a line; the field `text_field` holds the document, and `group_field` its unit."""

    text_field: str
    group_field: str = ""

    def documents(self, part: Part, progress: OnRead, on_bad: OnBad) -> Iterator[Document]:
        path = str(part.path)
        for number, line, size in _lines(part.path, progress):
            if line.isspace() or not line:
                continue
            if size > LONGEST_BYTES:
                on_bad(_too_long(f"{path}:{number}: a line", size, "break it into lines"))
                continue
            try:
                text, unit = self._text_and_unit(line, f"{path}:{number}")
            except UserError as error:
                on_bad(sized(error, size))
            else:
                yield Document(part.name, number, text, unit)

    def _text_and_unit(self, line: bytes, where: str) -> tuple[str, str]:
        record = object_of(line, where, self.text_field)
        if self.text_field not in record:
            raise no_field(where, self.text_field, list(record))
        return text_of(record[self.text_field], where, self.text_field), unit_of(record, self.group_field, where)


def _paragraphs(part: Part, progress: OnRead) -> Iterator[tuple[int, list[bytes], int]]:
    """Yield the runs of lines between blank lines.

    Yields:
      number of the first line, the lines, and their bytes. Of a run with more than `LONGEST_BYTES`, only the first
      lines.
    """
    first, paragraphs, size = 0, [], 0
    for number, whole, line_size in _lines(part.path, progress):
        for line in whole.split(b"\r") if line_size <= LONGEST_BYTES else [whole]:
            if line.decode("utf-8", "replace").strip():
                first = first or number
                if size <= LONGEST_BYTES:
                    paragraphs.append(line)
                size += line_size if line_size > LONGEST_BYTES else len(line)
            elif paragraphs:
                yield first, paragraphs, size
                first, paragraphs, size = 0, [], 0
    if paragraphs:
        yield first, paragraphs, size


def numbered_lines(path: epath.Path, progress: OnRead = lambda used: None) -> Iterator[tuple[int, bytes]]:
    """Yield numbers from 1, and lines without line ends (also those of Windows) and without byte-order marks.

    A byte-order mark starts a file, and a later line if files were concatenated.

    Args:
      path: a plain or compressed file; `~` is the home, which shells leave in `--config.a.b=~/file`.
      progress: called from time to time with the number of bytes read so far.

    Raises:
      Damaged: the file cannot be read to its end, or a line has more than `LONGEST_BYTES`.
      UserError: the file cannot be opened.
    """
    for number, line, size in _lines(path.expanduser(), progress):
        if size > LONGEST_BYTES:
            raise Damaged(str(_too_long(f"{path}:{number}: a line", size, "break it into lines")))
        yield number, line


def _lines(path: epath.Path, progress: OnRead) -> Iterator[tuple[int, bytes, int]]:
    """Yield what `numbered_lines` does, and the bytes of each line.

    Of a line with more than `LONGEST_BYTES` only the beginning is kept, and the next one follows.

    Raises:
      Damaged: the file cannot be read to its end, or is in another encoding.
      UserError: the file cannot be opened, or needs more memory than the reader allows.
    """
    with open_file(path) as file:
        try:
            unreported = 0
            stream = _decompressed(file, path.suffix)
            read = functools.partial(stream.readline, LONGEST_BYTES + 1)
            for number, line in enumerate(iter(read, b""), start=1):
                if number == 1:
                    check_encoding(line, f"{path}:1")
                size = len(line)
                if size > LONGEST_BYTES:
                    size, line = size + _rest_of_line(stream, line), line[:KEPT_BYTES]
                yield number, line.removeprefix(BYTE_ORDER_MARK).rstrip(b"\r\n"), size
                unreported += size
                if unreported >= MIB:
                    progress(file.tell())
                    unreported = 0
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            raise _undecodable(path, error) from None


def _rest_of_line(stream: io.BufferedReader, line: bytes) -> int:
    """Read to the end of a line that has started with `line`, and return the bytes of it that are left."""
    size = 0
    while not line.endswith(b"\n") and (line := stream.readline(MIB)):
        size += len(line)
    return size


def _too_long(what: str, size: int, remedy: str) -> UserError:
    return unread(f"{what} has more than {LONGEST_BYTES:,} bytes ({size:,}), and is not read; {remedy}", size)


def _undecodable(path: epath.Path, error: Exception) -> UserError:
    """Return the error of an archive that cannot be decoded, which tells apart why."""
    kind, reason = path.suffix[1:], reason_of(error)
    if kind == "zst" and "too much memory" in reason:
        # Archives of this kind are sound, and skipping one would lose all of its documents: always an error.
        return UserError(
            f"{path} was compressed with a window of more than 128 MiB (zstd --long=28 to 31), which is more than is "
            "read; recompress it with --long=27 or less: zstd -dc --long=31 OLD | zstd --long=27 -o NEW"
        )
    with path.open("rb") as file:
        head = file.read(8)
    starts = _STARTS.get(path.suffix, b"")
    if starts and head and not head.startswith(starts):
        other = next((name for name, mark in _STARTS.items() if head.startswith(mark)), "")
        looks = f"it starts like a {other} file" if other else "its first bytes are not those of the format"
        remedy = f"end its name with {other}" if other else f"if it is plain text, remove {path.suffix} from its name"
    elif isinstance(error, EOFError) or "truncated" in reason.lower() or "ended before" in reason.lower():
        looks, remedy = f"it is cut short: {reason}", "fetch it again"
    else:
        looks, remedy = f"it is damaged: {reason}", "fetch it again"
    return Damaged(f"{path} is cut short, damaged or not in the {kind} format ({looks}); {remedy}")


def _decompressed(file: io.BufferedReader, suffix: str) -> io.BufferedReader:
    """Return a buffered stream that raises if the file ends before its content does."""
    if suffix == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=file), MIB)
    if suffix == ".xz":
        return io.BufferedReader(lzma.LZMAFile(file), MIB)
    if suffix == ".zst":
        with extra("a .zst file"):
            import pyarrow
        # The reader of the zstandard library stops silently if a frame is cut short; this one raises.
        return io.BufferedReader(pyarrow.input_stream(file, compression="zstd"), MIB)
    return file
