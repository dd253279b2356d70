"""Text and JSON lines, plain and compressed: documents, and errors for bad ones."""

import gzip
import json
import lzma

import pyarrow
import pytest
from etils import epath
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data.sources import Document
from bertjax.data.sources.lines import numbered_lines
from bertjax.runtime.errors import UserError
from tests.data.sources.reading import error_of, read, skipping, texts

COMPRESS = {
    "": bytes,
    ".gz": lambda content: gzip.compress(content, mtime=0),  # the same bytes at any time
    ".xz": lzma.compress,
    ".zst": lambda content: pyarrow.Codec("zstd").compress(content, asbytes=True),
}
ARCHIVES = [suffix for suffix in COMPRESS if suffix]


@pytest.fixture(params=COMPRESS)
def write(request, tmp_path):
    """Write content to a file of a kind, under every compression."""

    def write(kind, content):
        path = tmp_path / f"a{kind}{request.param}"
        path.write_bytes(COMPRESS[request.param](content))
        return path

    return write


def test_blank_lines_end_the_documents_of_a_text_file(write, monkeypatch):
    path = write(".txt", "\ufeff\r\nOne.\r\nTwo.\r\n \r\n\u3000\r\nThree é.".encode())
    assert read(path) == [Document(path.name, 2, "One.\nTwo."), Document(path.name, 6, "Three é.")]
    monkeypatch.setenv("HOME", str(path.parent))
    assert list(numbered_lines(epath.Path("~") / path.name)) == list(numbered_lines(epath.Path(path)))


def test_json_lines(write):
    lines = "".join(json.dumps({"body": text}) + "\r\n" for text in ("One.\nTwo.", "셋"))
    path = write(".jsonl", b"\xef\xbb\xbf" + lines.replace("\r\n", "\r\n\r\n").encode())
    assert read(path, "body") == [Document(path.name, 1, "One.\nTwo."), Document(path.name, 3, "셋")]
    text = "One" + "".join(f"{chr(code)}x" for code in (0, 1, 7, 8, 11, 12, 26, 27, 28, 127, 0x85, 0xFEFF, 0x2028))
    assert texts(write(".txt", text.encode())) == [text]
    assert texts(write(".jsonl", json.dumps({"text": text}).encode())) == [text]
    path = write(".txt", "One.\n\né.\nab".encode() + b"\xff\n\nTwo.")
    assert f"{path}:3 is not UTF-8: its byte 6 is 0xff" in error_of(path)
    left, errors = skipping(path)
    assert left == ["One.", "Two."] and len(errors) == 1


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])).filter(str.strip), min_size=1))
def test_json_lines_are_read_as_written(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("corpus") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in written), "utf-8")
    assert texts(path) == written


def test_long_lines_and_documents_are_whole(tmp_path):
    line, document = "word " * 300_000, "Sixteen letters.\n" * 100_000
    (tmp_path / "a.txt").write_text(f"{line}\n\n{document}")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": line}) + "\n" + json.dumps({"text": document}))
    assert [text == whole for text, whole in zip(texts(tmp_path), [line, document[:-1], line, document])] == [True] * 4


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_members_of_an_archive_follow_each_other(tmp_path, suffix):
    compress = COMPRESS[suffix]
    (tmp_path / f"a.txt{suffix}").write_bytes(compress(b"One.\n") + compress(b"Two.\n\nThree."))
    assert texts(tmp_path) == ["One.\nTwo.", "Three."]


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


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_a_damaged_archive_is_named_and_read_up_to_the_damage(tmp_path, suffix):
    words = "".join(f"Sentence {number}.\n\n" for number in range(20_000))
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](words.encode())[:-20])
    message = error_of(path)
    assert f"{path} is cut short, damaged or not in the {suffix[1:]} format" in message
    left, errors = skipping(path)
    assert errors == [message] and left == [f"Sentence {number}." for number in range(len(left))]


def zstd_frame(content, window):
    """A frame of zstd with one raw block, and a window of 2**window bytes (RFC 8878, 3.1.1)."""
    block = (1 | len(content) << 3).to_bytes(3, "little") + content
    return b"\x28\xb5\x2f\xfd" + bytes([0, (window - 10) << 3]) + block


def test_a_zst_file_with_a_long_window_is_read_or_named_but_not_called_damaged(tmp_path):
    """The Pile and the dumps of Reddit are compressed with zstd --long=31."""
    good, bad = tmp_path / "good.jsonl.zst", tmp_path / "bad.txt.zst"
    good.write_bytes(zstd_frame(b'{"text": "One."}\n', 27))
    assert texts(good) == ["One."]
    bad.write_bytes(zstd_frame(b"One.\n", 31))
    message = error_of(bad)
    assert "recompress it with --long=27 or less: zstd -dc --long=31 OLD" in message and "damaged" not in message
    with pytest.raises(UserError, match="window of more than 128 MiB"):  # skipping it would lose all of its documents
        skipping(bad)


@pytest.mark.parametrize("suffix", ARCHIVES)
def test_what_is_wrong_with_an_archive_is_told_apart(tmp_path, suffix):
    whole = COMPRESS[suffix](b"".join(b"Sentence %d of a text.\n\n" % number for number in range(5000)))
    path = tmp_path / f"a.txt{suffix}"
    middle = len(whole) - 8 if suffix == ".gz" else len(whole) // 2  # the checksum of gz; garbage before may end early
    flipped = whole[:middle] + bytes(255 - byte for byte in whole[middle : middle + 4]) + whole[middle + 4 :]
    other = ".xz" if suffix == ".gz" else ".gz"
    for content, expected in (
        (whole[: len(whole) // 2], "(it is cut short: "),
        (b"" if suffix == ".xz" else whole[:10], "is cut short, damaged or not in the"),
        (flipped, "(it is damaged: "),
        (b"Plain text.\n" * 100, f"if it is plain text, remove {suffix} from its name"),
        (COMPRESS[other](b"One.\n"), f"(it starts like a file in the {other[1:]} format); end its name with {other}"),
    ):
        path.write_bytes(content)
        if suffix == ".zst" and content is flipped:
            continue  # it has no checksum
        assert expected in error_of(path)


@pytest.mark.parametrize(
    "kind, encoding, expected",
    [
        (".txt", "utf-16", "it starts like UTF-16"),
        (".jsonl", "utf-16-le", "as in UTF-16LE without a byte order mark"),
        (".txt.gz", "utf-16-be", "as in UTF-16BE without a byte order mark"),
        (".jsonl", "utf-32", "it starts like UTF-32"),
        (".txt", "utf-32-le", "as in UTF-32LE without a byte order mark"),
    ],
)
def test_another_encoding_is_named_and_not_one_document_of_it_is_read(tmp_path, kind, encoding, expected):
    """Its lines, divided at the bytes of UTF-8, would be text with a zero byte in each character."""
    path, content = tmp_path / f"a{kind}", ('{"text": "Some text."}\n' * 3).encode(encoding)
    path.write_bytes(gzip.compress(content) if kind.endswith(".gz") else content)
    message = error_of(path)
    assert f"{path}:1 is not UTF-8" in message and expected in message and "iconv -f UTF-" in message
    assert skipping(path) == ([], [message])


@pytest.mark.parametrize("kind", [".txt", ".jsonl"])
def test_an_archive_without_its_suffix_is_named(tmp_path, kind):
    """The time in the header of gzip may hold a line end, and zeros before it as UTF-16 has them."""
    contents = [(suffix, COMPRESS[suffix](b"Words. " * 99)) for suffix in ARCHIVES]
    contents += [(".gz", gzip.compress(b"Words.", mtime=written)) for written in (0x0A00, 0x0A000000)]
    for suffix, content in contents:
        (tmp_path / f"a{kind}").write_bytes(content)
        assert f"format; end its name with {suffix}" in error_of(tmp_path / f"a{kind}")
