"""Arrow tables: Parquet, and the memory-mapped stream files in the `datasets` cache."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from etils import epath

from bertjax.data.sources import base
from bertjax.data.sources.base import GROUP_FIELD, MIB, Document, OfFields, OnBad, OnRead, Part
from bertjax.runtime.errors import UserError, quoted
from bertjax.runtime.storage import reason_of

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
