"""Text and JSON lines, plain and compressed: documents, and errors for bad ones."""

import gzip
import io
import lzma

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.data import sources
from bertjax.runtime.errors import UserError
from tests.data.sources.reading import error_of, skipping

COMPRESS = {
    "": bytes,
    ".gz": lambda content: gzip.compress(content, mtime=0),  # the same bytes at any time
    ".xz": lzma.compress,
    ".zst": lambda content: pyarrow.Codec("zstd").compress(content, asbytes=True),
}


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


@pytest.mark.parametrize(
    "line, fragment",
    [
        (b"{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"1" * 5000, "is not JSON"),
        (b'{"text": "\xff"}', "is not UTF-8: its byte 10 is 0xff"),
        (b'["text"]', "is not a JSON object but \"['text']\""),
        (b'{"id": 1, "a\\nb": 2}', "has no field 'text' (it has id, a\\nb)"),
        (b"{}", "has no field 'text' (it has none)"),
        (b'{"text": 7}', "field 'text' is '7', not a string"),
        (b'{"text": null}', "field 'text' is null, not a string"),
        (b'{"text": ["One."]}', "not a string"),
        (b'{"text": ""}', "field 'text' is blank"),
        (b'{"text": " \\n\\u3000"}', "field 'text' is blank"),
        (b'{"text": "a\\ud800b"}', "holds a lone surrogate"),
    ],
)
def test_bad_json_line_is_named_or_left_out(tmp_path, line, fragment):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "One."}\n' + line + b'\n{"text": "\\ud83d\\ude00"}')
    message = error_of(path)
    assert f"{path}:2" in message and fragment in message
    assert skipping(path) == (["One.", "\N{GRINNING FACE}"], [message])


ARCHIVES = [suffix for suffix in COMPRESS if suffix]


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_a_damaged_archive_is_named_and_read_up_to_the_damage(tmp_path, suffix):
    words = "".join(f"Sentence {number}.\n\n" for number in range(20_000))
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](words.encode())[:-20])
    message = error_of(path)
    assert f"{path} is cut short, damaged or not in the {suffix[1:]} format" in message
    left, errors = skipping(path)
    assert errors == [message] and left == [f"Sentence {number}." for number in range(len(left))]
