"""For all contents of a file, reading ends, with documents or with an error of one line."""

import gzip
import io
import json
import lzma

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data import sources
from bertjax.runtime.errors import UserError

LINES = "".join(f'{{"text": "Sentence {number} é."}}\n\n' for number in range(40)).encode()


def parquet() -> bytes:
    file = io.BytesIO()
    table = pyarrow.table({"text": [f"Sentence {number} é." for number in range(40)], "id": range(40)})
    pyarrow.parquet.write_table(table, file, row_group_size=16, compression="zstd")
    return file.getvalue()


WHOLE = {
    "a.txt": LINES,
    "a.jsonl": LINES,
    "a.jsonl.gz": gzip.compress(LINES),
    "a.jsonl.xz": lzma.compress(LINES),
    "a.jsonl.zst": pyarrow.Codec("zstd").compress(LINES, asbytes=True),
    "a.parquet": parquet(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def check(folder, name, content):
    """Read a file, once skipping bad documents and once stopping; both agree up to the first bad document."""
    path = folder / name
    path.write_bytes(content)
    (part,) = sources.parts(str(path), "text")
    errors, steps, left = [], [], []
    try:
        for document in part.documents(steps.append, errors.append):
            assert document.text.strip() and document.text.encode() and document.id.startswith(f"{name}:")
            left.append(document)
        assert sum(steps) == len(content)
    except UserError as error:  # the file as a whole is of another shape, say without the field
        errors.append(error)
    assert left or errors
    assert not any("\n" in str(error) for error in errors)
    stopped = []
    try:
        for document in part.documents():
            stopped.append(document)
        assert not errors
    except UserError as error:
        assert str(error) == str(errors[0])
    assert stopped == left[: len(stopped)]


@pytest.mark.parametrize("name", WHOLE)
@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=200))
def test_arbitrary_bytes(folder, name, content):
    check(folder, name, content)


@pytest.mark.parametrize("name", WHOLE)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_files(folder, name, data):
    content = bytearray(WHOLE[name])
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    check(folder, name, bytes(content[: data.draw(st.integers(0, len(content)))]))
    check(folder, name, bytes(content))


@settings(max_examples=100, deadline=None)
@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_any_value_of_the_field(folder, value):
    check(folder, "a.jsonl", json.dumps({"text": value}).encode())
