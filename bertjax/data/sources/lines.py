"""Files of lines, plain or compressed: text and JSON lines."""

import dataclasses
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
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True)
class Text:
    """Plain text: a blank line ends a document, a line is a sentence or a paragraph."""

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
    """Yield the runs of lines between blank lines, each with the number of its first line."""
    first, paragraphs = 0, []
    for number, line in numbered_lines(part.path, progress):
        if line.decode("utf-8", "replace").strip():
            first = first or number
            paragraphs.append(line)
        elif paragraphs:
            yield first, paragraphs
            first, paragraphs = 0, []
    if paragraphs:
        yield first, paragraphs


def numbered_lines(path: epath.Path, progress: OnRead = lambda used: None) -> Iterator[tuple[int, bytes]]:
    """Yield numbers from 1, and lines without line ends (also those of Windows) and without a byte-order mark.

    Args:
      path: a plain or compressed file.
      progress: called from time to time with the number of bytes read so far.

    Raises:
      Damaged: the file cannot be read to its end.
      UserError: the file cannot be opened.
    """
    with open_file(path) as file:
        try:
            unreported = 0
            for number, line in enumerate(_decompressed(file, path.suffix), start=1):
                yield number, (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).rstrip(b"\r\n")
                unreported += len(line)
                if unreported >= MIB:
                    progress(file.tell())
                    unreported = 0
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            kind = path.suffix[1:]
            raise Damaged(
                f"{path} is cut short, damaged or not in the {kind} format ({reason_of(error)}); fetch it again"
            ) from None


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
