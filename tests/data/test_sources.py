"""Corpora as documents: every format, and one clear line for everything that is wrong with one."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.data import sources
from bertjax.data.sources import Document
from bertjax.errors import UserError


def read(corpus, text_field="text"):
    return list(sources.documents(str(corpus), text_field))


def texts(corpus):
    return [document.text for document in read(corpus)]


def error_of(corpus, text_field="text"):
    with pytest.raises(UserError) as caught:
        read(corpus, text_field)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_blank_lines_end_the_documents_of_a_text_file(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeff\r\nOne.\r\nTwo.\r\n \r\n\r\nThree é.".encode())
    assert read(tmp_path / "a.txt") == [Document("a.txt:2", "One.\nTwo."), Document("a.txt:6", "Three é.")]


def test_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfOne.")
    assert texts(tmp_path / "a.txt") == ["One."]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_json_lines(tmp_path, name):
    lines = "".join(json.dumps({"body": text}) + "\r\n" for text in ("One.\nTwo.", "셋"))
    (tmp_path / name).write_bytes(gzip.compress(lines.encode()) if name.endswith("gz") else lines.encode())
    assert read(tmp_path / name, "body") == [Document(f"{name}:1", "One.\nTwo."), Document(f"{name}:2", "셋")]


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
    for name in ("b.txt", "a/z.txt", "c.txt.gz", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress(name.encode()) if name.endswith("gz") else name.encode())
    assert texts(tmp_path) == ["a/z.txt", "b.txt", "c.txt.gz"]
    assert texts(tmp_path / "*.txt") == ["b.txt"]
    assert texts(f"{tmp_path}/**/*.txt") == ["a/z.txt", "b.txt"]


@pytest.mark.parametrize("name, documents", [("en", 353), ("ko", 379)])
def test_embedded_corpora(name, documents):
    assert len(read(f"embedded:{name}")) == documents


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])).filter(str.strip), min_size=1))
def test_json_lines_give_back_what_was_written(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("corpus") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in written), "utf-8")
    assert texts(path) == written


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_bytes_read_add_up_to_the_size(tmp_path, suffix):
    text = ("word " * 99 + "\n\n").encode() * 999
    (tmp_path / f"a{suffix}").write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    steps = []
    for _ in sources.documents(str(tmp_path), "text", steps.append):
        pass
    assert sum(steps) == sum(part.size for part in sources.parts(str(tmp_path), "text"))


def test_fingerprint_follows_names_and_content_but_not_the_place(tmp_path):
    def corpus(place, name="a.txt", text="One."):
        (tmp_path / place).mkdir()
        (tmp_path / place / name).write_text(text)
        return [part.fingerprint() for part in sources.parts(str(tmp_path / place), "text")]

    first = corpus("first")
    assert corpus("second") == first
    assert corpus("renamed", name="b.txt") != first
    assert corpus("changed", text="Two.") != first


def test_fingerprint_of_a_large_file_reads_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "WHOLE_BYTES", 0)
    path = tmp_path / "a.txt"
    content = bytearray(b"x" * 80 * sources.MIB)
    path.write_bytes(content)
    first = [part.fingerprint() for part in sources.parts(str(path), "text")]
    assert [part.fingerprint() for part in sources.parts(str(path), "text")] == first
    content[-1] = ord("y")
    path.write_bytes(content)
    assert [part.fingerprint() for part in sources.parts(str(path), "text")] != first


def test_missing_corpus(tmp_path):
    assert "does not exist" in error_of(tmp_path / "none.txt")
    assert "does not exist" in error_of(tmp_path / "*.txt")
    assert "embedded are en, ko" in error_of("embedded:xx")


def test_nothing_of_a_known_suffix(tmp_path):
    (tmp_path / "a.pdf").write_text("text")
    assert "holds no .txt" in error_of(tmp_path)
    assert "holds no .txt" in error_of(tmp_path / "a.pdf")


@pytest.mark.parametrize("name, content", [("a.txt", b""), ("a.txt", b"\n \n"), ("a.jsonl", b""), ("a.txt.gz", None)])
def test_empty_file(tmp_path, name, content):
    (tmp_path / name).write_bytes(gzip.compress(b"") if content is None else content)
    assert f"{name} is empty" in error_of(tmp_path / name)


def test_not_utf8_names_file_and_byte(tmp_path):
    (tmp_path / "a.txt").write_bytes("é.\nab".encode() + b"\xff")
    assert "a.txt is not UTF-8: byte 6 is 0xff" in error_of(tmp_path / "a.txt")


@pytest.mark.parametrize(
    "line, said",
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ('["text"]', "is no JSON object"),
        ('{"id": 1}', "has no field 'text' (it has id)"),
        ('{"text": 7}', "is '7', no string"),
        ('{"text": " "}', "is blank"),
        ('{"text": "\\ud800"}', "lone surrogate"),
    ],
)
def test_bad_json_line_is_named(tmp_path, line, said):
    (tmp_path / "a.jsonl").write_text('{"text": "One."}\n' + line + "\n")
    message = error_of(tmp_path / "a.jsonl")
    assert "a.jsonl:2" in message and said in message


WHOLE_GZIP = gzip.compress(b"Some text.\n" * 9 + bytes(range(65, 91)))


@pytest.mark.parametrize("damaged", [WHOLE_GZIP[:-20], b"plain text", WHOLE_GZIP[:30] * 2])
def test_damaged_gzip(tmp_path, damaged):
    (tmp_path / "a.txt.gz").write_bytes(damaged)
    assert "is cut short or no gzip file" in error_of(tmp_path / "a.txt.gz")
