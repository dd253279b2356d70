"""Bad corpora of every kind: each ends `bertjax prepare` in one line with its exit code, or is read as documented."""

import bz2
import gzip
import io
import os
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest
import tenacity

from bertjax.cli import prepare
from bertjax.data.sources import documents, records
from bertjax.runtime import command_line, storage
from tests import runs
from tests.data.sources.reading import error_of, skipping

WORDS = "".join(f"Sentence {number} of a text.\n\n" for number in range(2000)).encode()
GOOD_LINE = b'{"text": "One."}\n'


def parquet(column: object, name: str = "text", **options) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({name: column}), file, **options)
    return file.getvalue()


def flip(content: bytes) -> bytes:
    """Return a file with a damaged middle."""
    middle = len(content) // 2
    return content[:middle] + bytes(255 - byte for byte in content[middle : middle + 64]) + content[middle + 64 :]


PARQUET = parquet([f"Sentence {number}." for number in range(2000)], compression="zstd", write_page_checksum=True)
CUT = "is cut short, damaged or not in the"
NOT_UTF8 = "is not UTF-8"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
PULL = "looks like a pointer of Git LFS"
# (name of a file, its content, a part of the line): each ends in exit code 2.
FILES = [
    ("blank.txt", b"\n \t\r\n\xe3\x80\x80\n", "blank.txt is empty"),
    ("latin-1.txt", "Caf\u00e9.".encode("latin-1"), NOT_UTF8),
    ("utf-16-le.jsonl", GOOD_LINE.decode().encode("utf-16-le"), "UTF-32 without a byte order mark"),
    ("utf-32.txt.gz", gzip.compress("Text.\n".encode("utf-32")), "looks like UTF-32 and not like text in UTF-8"),
    ("utf-16-be.txt", b"\xfe\xff" + "Some text.\n".encode("utf-16-be"), "looks like UTF-16 and not"),
    *((f"pointer{suffix}", POINTER, PULL) for suffix in (".txt", ".jsonl", ".txt.gz", ".json.zst", ".parquet")),
    ("pointer-in.txt.gz", gzip.compress(POINTER), PULL),
    ("archive.txt", b"PK\x03\x04" + bytes(26) + b"a.txt", "looks like a .zip archive and not like text in UTF-8"),
    ("tar.txt.gz", gzip.compress(b"a.txt".ljust(257, b"\0") + b"ustar\0"), "looks like a .tar archive"),
    ("sheet.txt", b"PK\x03\x04" + bytes(26) + b"xl/workbook.xml", "looks like a spreadsheet or document"),
    ("column.txt", PARQUET, "looks like Parquet and not like text in UTF-8; end its name with .parquet"),
    ("cesu-8.txt", b"A face: \xed\xa0\xbd\xed\xb8\x80.", NOT_UTF8),
    ("overlong.txt", b"A slash: \xc0\xaf.", NOT_UTF8),
    ("cut-character.txt", "Ends within \u00e9".encode()[:-1], NOT_UTF8),
    ("binary.txt", bytes(range(256)) * 8, NOT_UTF8),
    ("gz-without-suffix.txt", gzip.compress(WORDS), "looks like gz and not like text in UTF-8; end its name"),
    ("one.txt", b"Only one document.", "gives"),
    ("no-token.txt", b"\xe2\x96\x81\n\n" * 40, "but two of each are needed"),
    ("flipped.txt.gz", flip(gzip.compress(WORDS)), f"{CUT} gz format"),
    ("rest.txt.gz", gzip.compress(WORDS) + b"the rest", f"{CUT} gz format"),
    ("of-nothing.txt.gz", gzip.compress(b""), "of-nothing.txt.gz is empty"),
    ("empty.txt.xz", b"", f"{CUT} xz format"),
    ("empty.txt.zst", b"", "empty.txt.zst is"),
    ("broken.jsonl", GOOD_LINE + b'{"text": "cut', "broken.jsonl:2 is not JSON"),
    ("pretty.jsonl", b'{\n  "text": "One."\n}\n', "one JSON object a line: jq -cs 'flatten[]' OLD > NEW"),
    ("array.jsonl", b'[{"text": "One."}]\n', "array.jsonl:1 is not a JSON object"),
    ("late.jsonl", GOOD_LINE * 50 + b'{"other": 1}\n', "late.jsonl:51 has no field 'text'"),
    ("deep.jsonl", b'{"text": ' + b"[" * 100_000 + b"\n", "deep.jsonl:1 is not JSON"),
    ("csv.jsonl", b"text\nOne.\n", "csv.jsonl:1 is not JSON"),
    ("plain.jsonl.xz", GOOD_LINE, f"{CUT} xz format"),
    ("flipped.parquet", flip(PARQUET), f"{CUT} Parquet format"),
    ("text.parquet", WORDS, f"{CUT} Parquet format"),
    ("list.parquet", parquet([["One."], ["Two."]]), "is of type list"),
    ("struct.parquet", parquet([{"body": "One."}]), "is of type struct"),
    ("no-type.parquet", parquet([None, None]), "is of type null"),
    ("notes.pdf", b"%PDF-1.4", "holds no .txt"),
    ("text", b"One.", "holds no .txt"),
    ("text.txt.bz2", bz2.compress(WORDS), "holds no .txt"),
    ("text.json", b'[{"text": "One."}]', "holds no .txt"),
    ("text.csv", b"text\nOne.\n", "holds no .txt"),
]


def named(corpus: str) -> Callable[[Path], str]:
    """A corpus that no file is made for."""
    return lambda folder: corpus.format(folder=folder)


def pipe_in_folder(folder: Path) -> Path:
    (folder / "good.txt").write_bytes(WORDS)
    os.mkfifo(folder / "pipe.txt")
    return folder


def dangling_link(folder: Path) -> Path:
    (folder / "good.txt").write_bytes(WORDS)
    (folder / "link.txt").symlink_to(folder / "nowhere.txt")
    return folder


def circle(folder: Path) -> Path:
    (folder / "sub").mkdir()
    (folder / "sub" / "up").symlink_to(folder)
    return folder


def name_that_is_not_utf8(folder: Path) -> Path:
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.txt")).write_bytes(WORDS)
    return folder


def name_with_a_line_end(folder: Path) -> Path:
    (folder / "two\nlines\x1b[31m.txt").write_bytes(b"\xff")
    return folder


def one_bad_among_good(folder: Path) -> Path:
    (folder / "a.txt").write_bytes(WORDS)
    (folder / "b.jsonl").write_bytes(GOOD_LINE * 9 + b"{")
    return folder


# (what makes it, a part of the line, exit code)
PLACES = [
    (named("{folder}/nowhere.txt"), "does not exist; name a file, a folder, a glob, or embedded:en", 2),
    (named("{folder}/[.txt"), "does not exist", 2),
    (named("{folder}"), "does not exist", 2),
    (named("{folder}/" + "x" * 300 + ".txt"), "does not exist", 2),
    (named(""), "data.corpus is empty", 2),
    (named("embedded:xx"), "choose one of en, ko", 2),
    (named("s4://bucket/a.txt"), "s4://bucket/a.txt is a URL, which is not opened here; download it", 2),
    (named("file:///etc/passwd"), "is not opened here; name /etc/passwd", 2),
    (named("tfds:"), "cannot be opened", 2),
    (named("tfds:no_such_set/no_such_config:train[:10%"), "cannot be opened", 2),
    (named("hf:nobody/nothing"), "cannot be loaded", 75),
    (named("hf:{folder}/nothing"), "cannot be loaded", 2),
    (named("hf:"), "cannot be loaded", 2),
    (pipe_in_folder, "pipe.txt is a pipe, a socket or a device; copy its content to a file", 2),
    (named("/dev/null"), "holds no .txt", 2),
    (dangling_link, "link.txt cannot be read: No such file or directory", 2),
    (circle, "does not exist", 2),
    (name_that_is_not_utf8, "caf\\udce9.txt' is not UTF-8; rename the file", 2),
    (name_with_a_line_end, "two lines\\x1b[31m.txt:1 is not UTF-8", 2),
    (one_bad_among_good, "b.jsonl:10 is not JSON", 2),
]
# (name of a file, its content, the texts that are read)
READ = [
    ("nul.txt", b"One\x00two.", ["One\x00two."]),
    ("windows.txt", b"\xef\xbb\xbfOne.\r\nTwo.\r\n\r\nThree.", ["One.\nTwo.", "Three."]),
    ("old-mac.txt", b"One.\rTwo.\r\rThree.\r", ["One.\nTwo.", "Three."]),
    ("joined.txt", b"\xef\xbb\xbfOne.\n\n\xef\xbb\xbfTwo.", ["One.", "Two."]),
    ("joined.jsonl", (b"\xef\xbb\xbf" + GOOD_LINE) * 2, ["One.", "One."]),
    ("joined.txt.gz", gzip.compress(b"One.\n") + gzip.compress(b"\nTwo."), ["One.", "Two."]),
    ("zeros.txt.gz", gzip.compress(b"One.") + bytes(64), ["One."]),
    ("escapes.jsonl", b'{"text": "\\u0007\\ud83d\\ude00"}', ["\x07\N{GRINNING FACE}"]),
    ("twice.jsonl", b'{"text": "One.", "text": "Two."}', ["Two."]),
    ("separators.txt", "One.\u2028Two.\x85Three.\x0cFour.".encode(), ["One.\u2028Two.\x85Three.\x0cFour."]),
    ("dictionary.parquet", parquet(pyarrow.array(["One.", "One."]).dictionary_encode()), ["One.", "One."]),
]


@pytest.mark.parametrize("name, content, expected", READ, ids=[name for name, _, _ in READ])
def test_an_unusual_file_is_read(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    assert [document.text for document in documents(str(tmp_path / name), "text")] == expected


@pytest.fixture
def prepared(tmp_path, capsys, monkeypatch):
    """prepared(corpus, *flags) -> exit code and the lines on stderr of `bertjax prepare`."""
    monkeypatch.setattr(storage, "_WAIT", tenacity.wait_none())
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    stores = tmp_path / "stores"
    flags = [f"--config={runs.CONFIG}", f"--config.data.store={stores}", "--config.data.workers=0"]

    def prepared(corpus, *more):
        code = command_line.exit_code_of(lambda: prepare.main([*flags, f"--config.data.corpus={corpus}", *more]))
        assert not stores.exists() or not [path for path in stores.iterdir() if path.is_dir()], "something is left"
        return code, capsys.readouterr().err.splitlines()

    return prepared


@pytest.mark.parametrize("name, content, complaint", FILES, ids=[name for name, _, _ in FILES])
def test_a_bad_file(prepared, tmp_path, name, content, complaint):
    (tmp_path / name).write_bytes(content)
    code, [line] = prepared(tmp_path / name)
    assert code == 2 and line.startswith("error: ") and complaint in line, line


@pytest.mark.parametrize("make, complaint, code", PLACES, ids=[str(index) for index in range(len(PLACES))])
def test_a_bad_place(prepared, tmp_path, make, complaint, code):
    (tmp_path / "corpus").mkdir()
    exit_code, lines = prepared(make(tmp_path / "corpus"))
    [line] = [line for line in lines if line.startswith("error: ")]
    assert exit_code == code and lines[-1] == line and complaint in line, lines
    assert not any(line.startswith("Traceback") for line in lines)


@pytest.mark.parametrize(
    "name, content, complaint",
    [
        ("line.txt.gz", gzip.compress(b"One.\n\n" + b"word " * 300), "line.txt.gz:3: a line has more than 1,000 bytes"),
        ("line.jsonl", b'{"text": "' + b"word " * 300, "line.jsonl:1: a line has more than 1,000 bytes"),
        ("document.txt", b"One.\n\n" + b"A sentence.\n" * 99, "document.txt:3: a document has more than 1,000 bytes"),
    ],
    ids=["line.txt.gz", "line.jsonl", "document.txt"],
)
def test_a_line_without_an_end(prepared, tmp_path, monkeypatch, name, content, complaint):
    monkeypatch.setattr(records, "LONGEST_BYTES", 1000)
    (tmp_path / name).write_bytes(content)
    code, [line] = prepared(tmp_path / name)
    assert code == 2 and complaint in line, line


def write(path, column, **options):
    table = pyarrow.table({"id": range(len(column)), "body": column})
    pyarrow.parquet.write_table(table, path, **options)


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
