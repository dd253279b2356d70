"""Line-based files, plain or compressed: text and JSON lines."""

import dataclasses
import functools
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator

from etils import epath

from bertjax.data.sources import base
from bertjax.data.sources.base import MIB, Document, OfFields, OnBad, OnRead, Part
from bertjax.runtime.errors import Damaged, UserError
from bertjax.runtime.storage import place_of, reason_of

COMPRESSIONS = (".gz", ".zst", ".xz")
# Lines and documents are held in memory, and a small archive can expand to a line of any length.
LONGEST_BYTES = 1 << 30
# Bytes kept from a longer line, to identify it.
KEPT_BYTES = 1 << 10
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True)
class Text:
    """Plain text: a blank line ends a document; a line is a sentence or paragraph. A lone CR also ends a line."""

    def documents(self, part: Part, progress: OnRead, on_bad: OnBad) -> Iterator[Document]:
        items = ((first, (paragraphs, size), size) for first, paragraphs, size in _paragraphs(part, progress))
        yield from base.documents_of(part, items, self._read, on_bad)

    def _read(self, content: tuple[list[bytes], int], where: str) -> tuple[str, str]:
        paragraphs, size = content
        _check_size(size, f"{where}: {'a line' if len(paragraphs) == 1 else 'a document'}")
        return base.text_of(b"\n".join(paragraphs), where), ""


class JsonLines(OfFields):
    """JSON lines: one object per line."""

    def documents(self, part: Part, progress: OnRead, on_bad: OnBad) -> Iterator[Document]:
        # Blank lines between objects are harmless, and common at the end of a file.
        lines = (numbered for numbered in _lines(part.path, progress) if numbered[1].strip())
        items = ((number, (line, size), size) for number, line, size in lines)
        yield from base.documents_of(part, items, self._read, on_bad)

    def _read(self, content: tuple[bytes, int], where: str) -> tuple[str, str]:
        line, size = content
        _check_size(size, f"{where}: a line")
        record = base.object_of(line, where, f"{{{self.text_field!r}: ...}}")
        if self.text_field not in record:
            raise base.no_field(where, self.text_field, list(record))
        return base.text_of(record[self.text_field], where, self.text_field), base.unit_of(
            record, self.group_field, where
        )


def _paragraphs(part: Part, progress: OnRead) -> Iterator[tuple[int, list[bytes], int]]:
    """Group lines into documents, separated by blank lines.

    Yields:
      First line number, lines, and total bytes. Lines after the first `LONGEST_BYTES` are dropped, but counted.
    """
    first, paragraphs, size = 0, [], 0
    for number, whole, line_size in _lines(part.path, progress):
        # `readline` splits at \n only; old Macintosh files have \r alone.
        for line in whole.split(b"\r") if line_size <= LONGEST_BYTES else [whole]:
            if line.decode("utf-8", "replace").strip():  # a blank line may hold any white space, such as U+3000
                first = first or number
                if size <= LONGEST_BYTES:
                    paragraphs.append(line)
                size += line_size if line_size > LONGEST_BYTES else len(line)
            elif paragraphs:
                yield first, paragraphs, size
                first, paragraphs, size = 0, [], 0
    if paragraphs:
        yield first, paragraphs, size


def numbered_lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield line numbers from 1, and lines without line ends (LF or CRLF) or byte-order marks.

    A byte-order mark starts a file, and also a later line if files were concatenated.

    Args:
      path: a plain or compressed file, see `storage.place_of`.

    Raises:
      Damaged: the file cannot be read to its end, or a line has more than `LONGEST_BYTES`.
      UserError: the file cannot be opened.
    """
    for number, line, size in _lines(place_of(path), lambda used: None):
        _check_size(size, f"{path}:{number}: a line", Damaged)
        yield number, line


def _lines(path: epath.Path, progress: OnRead) -> Iterator[tuple[int, bytes, int]]:
    """Yield line number, line, and line length in bytes.

    A line longer than `LONGEST_BYTES` is truncated to `KEPT_BYTES`, and reading continues with the next line.

    Raises:
      Damaged: the file cannot be read to its end, or is in another encoding.
      UserError: the file cannot be opened, or needs more memory than the reader allows.
    """
    with base.open_file(path) as file:
        try:
            unreported = 0  # progress is reported per MiB, because lines may be very short
            stream = _decompressed(file, path.suffix.lower())
            # Bounded, so that a file without line ends cannot exhaust memory.
            read = functools.partial(stream.readline, LONGEST_BYTES + 1)
            for number, line in enumerate(iter(read, b""), start=1):
                if number == 1:
                    base.check_text((line + stream.peek())[: base.HEAD], str(path))
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
    """Skip to the end of the line that `line` starts, and return how many bytes were skipped."""
    size = 0
    while not line.endswith(b"\n") and (line := stream.readline(MIB)):
        size += len(line)
    return size


def _check_size(size: int, what: str, error: type[UserError] = UserError) -> None:
    if size > LONGEST_BYTES:
        remedy = "break it into lines, and end documents with a blank line"
        raise error(f"{what} has more than {LONGEST_BYTES:,} bytes ({size:,}), and is not read; {remedy}")


def _undecodable(path: epath.Path, error: Exception) -> UserError:
    """Return the error for an undecodable archive: wrong format, cut short, damaged, or too large a window."""
    kind, reason = path.suffix[1:].lower(), reason_of(error)
    if kind == "zst" and "too much memory" in reason:
        # Archives of this kind are sound, and skipping one would lose all of its documents: always an error.
        remedy = "recompress it with --long=27 or less: zstd -dc --long=31 OLD | zstd --long=27 -o NEW"
        return UserError(f"{path} was compressed with a window of more than 128 MiB (zstd --long=28 to 31); {remedy}")
    remedy = f"fetch it again, or remove {path.suffix} from its name if it is plain text"
    return base.undecodable(path, kind, reason, remedy)


def _decompressed(file: io.BufferedReader, suffix: str) -> io.BufferedReader:
    """Return a buffered stream that raises if the archive is truncated."""
    if suffix == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=file), MIB)
    if suffix == ".xz":
        return io.BufferedReader(lzma.LZMAFile(file), MIB)
    if suffix == ".zst":
        with base.extra("a .zst file"):
            import pyarrow
        # The reader of the zstandard library stops silently if a frame is cut short; this one raises.
        return io.BufferedReader(pyarrow.input_stream(file, compression="zstd"), MIB)
    return file
