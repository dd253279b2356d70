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
from bertjax.data.sources.base import Document, OnBad, OnRead, Part, no_field, object_of, text_of
from bertjax.errors import Damaged, UserError
from bertjax.storage import reason_of

COMPRESSIONS = (".gz", ".zst", ".xz")
# A line, or a document of lines, is held in memory. A small archive can hold a line of any length.
LONGEST_BYTES = 1 << 30
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True)
class Text:
    """Plain text: a blank line ends a document, a line is a sentence or a paragraph. A lone CR also ends a line."""

    def documents(self, part: Part, progress: OnRead, on_bad: OnBad) -> Iterator[Document]:
        for first, paragraphs in _paragraphs(part, progress):
            try:
                text = text_of(b"\n".join(paragraphs), f"{part.path}:{first}")
            except UserError as error:
                on_bad(error)
            else:
                yield Document(part.name, first, text)


@dataclasses.dataclass(frozen=True)
class JsonLines:
    """One JSON object a line; the field `text_field` holds the document."""

    text_field: str

    def documents(self, part: Part, progress: OnRead, on_bad: OnBad) -> Iterator[Document]:
        for number, line in numbered_lines(part.path, progress):
            if line.isspace() or not line:
                continue
            try:
                text = self._text(line, f"{part.path}:{number}")
            except UserError as error:
                on_bad(error)
            else:
                yield Document(part.name, number, text)

    def _text(self, line: bytes, where: str) -> str:
        record = object_of(line, where, self.text_field)
        if self.text_field not in record:
            raise no_field(where, self.text_field, list(record))
        return text_of(record[self.text_field], where, self.text_field)


def _paragraphs(part: Part, progress: OnRead) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the runs of lines between blank lines, each with the number of its first line.

    Raises:
      Damaged: a document has more than `LONGEST_BYTES`.
    """
    first, paragraphs, size = 0, [], 0
    for number, whole in numbered_lines(part.path, progress):
        for line in whole.split(b"\r"):
            if line.decode("utf-8", "replace").strip():
                first = first or number
                paragraphs.append(line)
                size += len(line)
                if size > LONGEST_BYTES:
                    raise _too_long(f"{part.path}:{first}: a document", "end documents with a blank line")
            elif paragraphs:
                yield first, paragraphs
                first, paragraphs, size = 0, [], 0
    if paragraphs:
        yield first, paragraphs


def numbered_lines(path: epath.Path, progress: OnRead = lambda used: None) -> Iterator[tuple[int, bytes]]:
    """Yield numbers from 1, and lines without line ends (also those of Windows) and without byte-order marks.

    A byte-order mark starts a file, and a later line if files were concatenated.

    Args:
      path: a plain or compressed file.
      progress: called from time to time with the number of bytes read so far.

    Raises:
      Damaged: the file cannot be read to its end, or a line has more than `LONGEST_BYTES`.
      UserError: the file cannot be opened.
    """
    with open_file(path) as file:
        try:
            unreported = 0
            read = functools.partial(_decompressed(file, path.suffix).readline, LONGEST_BYTES + 1)
            for number, line in enumerate(iter(read, b""), start=1):
                if len(line) > LONGEST_BYTES:
                    raise _too_long(f"{path}:{number}: a line", "break it into lines")
                yield number, line.removeprefix(BYTE_ORDER_MARK).rstrip(b"\r\n")
                unreported += len(line)
                if unreported >= MIB:
                    progress(file.tell())
                    unreported = 0
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            kind = path.suffix[1:]
            raise Damaged(
                f"{path} is cut short, damaged or not in the {kind} format ({reason_of(error)}); fetch it again"
            ) from None


def _too_long(what: str, remedy: str) -> Damaged:
    return Damaged(f"{what} has more than {LONGEST_BYTES:,} bytes, and nothing after it is read; {remedy}")


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
