"""Records of a file: lines of text and JSON, plain or compressed, and rows of Arrow tables.

Tables are Parquet files, and the memory-mapped stream files in the `datasets` cache.
"""

import dataclasses
import functools
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from etils import epath

from bertjax.data.sources import base
from bertjax.data.sources.base import GROUP_FIELD, MIB, Document, OfFields, OnBad, OnRead, Part
from bertjax.runtime.errors import Damaged, UserError, quoted
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


if TYPE_CHECKING:
    import pyarrow

PARQUET_ROWS = 256  # rows per read; few, because documents may be long


class Parquet(OfFields):
    """Parquet reader: a row is a document; only the columns `text_field` and `group_field` are read."""

    def documents(self, part: Part, progress: OnRead, on_bad: OnBad) -> Iterator[Document]:
        with base.extra("a .parquet file"):
            import pyarrow
            import pyarrow.parquet
        with base.open_file(part.path) as file:
            try:
                # No pre-buffering: it would hold a whole row group, which may be as large as the file.
                table = pyarrow.parquet.ParquetFile(
                    file, buffer_size=MIB, pre_buffer=False, page_checksum_verification=True
                )
                columns = _columns(table.schema_arrow, part, self.text_field, self.group_field)
                rows = table.metadata.num_rows
                seen = 0
                for batch in table.iter_batches(PARQUET_ROWS, columns=columns, use_threads=False):
                    yield from _documents(batch, seen, part, columns, on_bad)
                    seen += len(batch)
                    progress(part.size * min(seen, rows) // max(rows, 1))  # a damaged footer may count less
            except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
                raise base.undecodable(part.path, "Parquet", reason_of(error)) from None


def rows(path: epath.Path) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file as JSON values: dates and other types become text.

    Raises:
      Damaged: the file cannot be read to its end.
      UserError: it cannot be opened.
    """
    with base.extra("a .parquet file"):
        import pyarrow
        import pyarrow.parquet
    with base.open_file(path) as file:
        try:
            table = pyarrow.parquet.ParquetFile(file).read()
            names = table.column_names
            if twice := [name for index, name in enumerate(names) if name in names[:index]]:
                raise UserError(f"{path} has two columns {quoted(twice[0])}; rename one")
            values = table.to_pylist()
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise base.undecodable(path, "Parquet", reason_of(error)) from None
    return json.loads(json.dumps(values, default=_as_text))


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


class ArrowStream(OfFields):
    """Reader for memory-mapped files in the `datasets` cache; a row is a document."""

    def documents(self, part: Part, progress: OnRead, on_bad: OnBad) -> Iterator[Document]:
        with base.extra("a data set of Hugging Face"):
            import pyarrow
        try:
            with pyarrow.memory_map(str(part.path)) as file:
                batches = pyarrow.ipc.open_stream(file)
                columns = _columns(batches.schema, part, self.text_field, self.group_field)
                seen = 0
                for batch in batches:
                    yield from _documents(batch, seen, part, columns, on_bad)
                    seen += len(batch)
                    progress(file.tell())
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise base.undecodable(part.path, "Arrow", reason_of(error)) from None


def _columns(schema: "pyarrow.Schema", part: Part, field: str, group_field: str) -> list[str]:
    """Return the names of the columns to read.

    Raises:
      UserError: column `field` is missing or neither text nor bytes, or column `group_field` is missing.
    """
    from pyarrow import types

    if field not in schema.names:
        raise base.no_field(str(part.path), field, schema.names)
    kind = schema.field(field).type
    value = kind.value_type if types.is_dictionary(kind) else kind
    is_text = types.is_string(value) or types.is_large_string(value) or types.is_string_view(value)
    is_bytes = types.is_binary(value) or types.is_large_binary(value) or types.is_binary_view(value)
    if not is_text and not is_bytes:
        raise UserError(f"{part.path}: column {field!r} is of type {kind}, not text; set data.text_field")
    if group_field and group_field not in schema.names:
        raise base.no_field(str(part.path), group_field, schema.names, GROUP_FIELD)
    return [field, group_field] if group_field else [field]


def _documents(
    batch: "pyarrow.RecordBatch", seen: int, part: Part, columns: list[str], on_bad: OnBad
) -> Iterator[Document]:
    """Yield one document per row, numbered from `seen` + 1."""
    import pyarrow

    field, *group_fields = columns
    column = batch.column(field)
    units = [batch.column(name).to_pylist() for name in group_fields]
    if pyarrow.types.is_dictionary(column.type):  # pandas writes categories so
        column = column.dictionary_decode()
    # As bytes: Arrow does not check that its strings are UTF-8.
    values = (value.as_py() for value in column.cast(pyarrow.large_binary()))
    rows = enumerate(zip(values, *units, strict=True), start=seen + 1)

    def read(row: tuple, where: str) -> tuple[str, str]:
        text, unit = base.text_of(row[0], where, field), ""
        for name, value in zip(group_fields, row[1:], strict=True):
            unit = base.unit_of({name: value}, name, where)
        return text, unit

    yield from base.documents_of(part, ((number, row, len(row[0] or b"")) for number, row in rows), read, on_bad)
