"""Parquet: the text column of every kind that Arrow has for text, and errors for bad files and rows."""

import pyarrow
import pyarrow.parquet
import pytest

from bertjax.data.sources import Document
from tests.data.sources.reading import error_of, read, skipping, texts

KINDS = {
    "string": "none",
    "large_string": "snappy",
    "string_view": "gzip",
    "binary": "zstd",
    "large_binary": "none",
    "binary_view": "none",
    "dictionary": "zstd",
}
TEXTS = [f"Text {number}.\nSecond é line." for number in range(1000)]


def write(path, column, **options):
    table = pyarrow.table({"id": range(len(column)), "body": column})
    pyarrow.parquet.write_table(table, path, **options)


@pytest.mark.parametrize("kind, compression", KINDS.items())
def test_text_columns_and_compressions(tmp_path, kind, compression):
    type = pyarrow.dictionary("int32", "string") if kind == "dictionary" else getattr(pyarrow, kind)()
    column = pyarrow.array([text.encode() for text in TEXTS] if "binary" in kind else TEXTS)
    write(tmp_path / "a.parquet", column.cast(type), row_group_size=300, compression=compression)
    assert read(tmp_path, "body") == [Document("a.parquet", number, text) for number, text in enumerate(TEXTS, 1)]


def test_columns(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"a.b": ["One."], "a": [{"b": "Two."}]}), tmp_path / "a.parquet")
    assert texts(tmp_path, "a.b") == ["One."]
    write(tmp_path / "a.parquet", TEXTS)
    assert "a.parquet has no field 'text' (it has id, body)" in error_of(tmp_path)
    assert "column 'id' is of type int64, not text" in error_of(tmp_path, "id")
    text = "word " * 1_000_000
    write(tmp_path / "a.parquet", ["One.", text])
    assert texts(tmp_path, "body")[1] == text
    write(tmp_path / "a.parquet", pyarrow.array([], pyarrow.string()))
    assert "a.parquet is empty" in error_of(tmp_path, "body")


@pytest.mark.parametrize(
    "row, fragment",
    [
        (None, "is null, not a string"),
        (b"", "is blank"),
        (b" \n", "is blank"),
        (b"a\xff", "is not UTF-8: its byte 1 is 0xff"),
    ],
)
def test_a_bad_row_is_named_or_left_out(tmp_path, row, fragment):
    # Parquet has writers that do not check that a string is UTF-8, Arrow's own among them.
    column = pyarrow.array([b"One.", row, b"Two."], pyarrow.binary()).view(pyarrow.string())
    write(tmp_path / "a.parquet", column)
    message = error_of(tmp_path, "body")
    assert f"{tmp_path / 'a.parquet'}:2: field 'body' {fragment}" in message
    assert skipping(tmp_path, "body") == (["One.", "Two."], [message])


def test_a_hole_in_the_middle_ends_the_part(tmp_path):
    path = tmp_path / "a.parquet"
    write(path, TEXTS, row_group_size=500, compression="gzip", use_dictionary=False)
    whole = path.read_bytes()
    middle = pyarrow.parquet.ParquetFile(path).metadata.row_group(1).column(1).data_page_offset
    path.write_bytes(whole[: middle + 50] + bytes(200) + whole[middle + 250 :])
    left, errors = skipping(path, "body")
    assert 200 < len(left) <= 500 and left == TEXTS[: len(left)]
    assert len(errors) == 1 and "is cut short, damaged" in errors[0]
