"""Files, folders and globs, local and remote: the files, their order, and the errors if there are none."""

import gzip
import io
import os
import subprocess
import sys

import datasets
import pyarrow
import pyarrow.parquet
import pytest
import tenacity
from etils import epath
from fsspec import filesystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from bertjax.data import sources
from bertjax.data.sources import base
from bertjax.runtime import storage
from tests.data.sources.reading import error_of, read, texts


def write(folder, *names):
    """Files whose one text is their own name."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            pyarrow.parquet.write_table(pyarrow.table({"text": [name]}), path)
        else:
            path.write_bytes(gzip.compress(name.encode()) if path.suffix == ".gz" else name.encode())


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
    write(tmp_path, "b.txt", "a/z.txt", "c.txt.gz", "README.md", "b.parquet")
    assert [part.name for part in sources.parts(str(tmp_path), "text")] == [
        "a/z.txt",
        "b.parquet",
        "b.txt",
        "c.txt.gz",
    ]
    assert texts(tmp_path) == ["a/z.txt", "b.parquet", "b.txt", "c.txt.gz"]
    assert texts(tmp_path / "*.txt") == ["b.txt"]
    assert texts(f"{tmp_path}/**/*.txt") == ["a/z.txt", "b.txt"]
    assert [len(read(f"embedded:{name}")) for name in ("en", "ko")] == [353, 379]


def test_a_glob_of_folders_says_how_to_read_them(tmp_path, capsys):
    write(tmp_path, "wiki/AA.txt/a.txt", "wiki/AB/b.txt")
    assert "matches folders only; end it with /** to read" in error_of(tmp_path / "wiki" / "*")
    assert texts(tmp_path / "wiki" / "**") == ["wiki/AA.txt/a.txt", "wiki/AB/b.txt"] and not capsys.readouterr().err
    write(tmp_path, "wiki/c.txt")
    assert texts(tmp_path / "wiki" / "*") == ["wiki/c.txt"]
    assert "2 folders left out; end it with /** to read" in capsys.readouterr().err


def test_links_to_folders_are_followed_and_circles_end(tmp_path):
    write(tmp_path, "corpus/a.txt", "other/b.txt")
    (tmp_path / "corpus" / "link").symlink_to(tmp_path / "other")
    (tmp_path / "corpus" / "again").symlink_to(tmp_path / "other")
    (tmp_path / "other" / "circle").symlink_to(tmp_path / "corpus")
    (tmp_path / "corpus" / "self").symlink_to(tmp_path / "corpus")
    names = [part.name for part in sources.parts(str(tmp_path / "corpus"), "text")]
    assert names == ["a.txt", "again/b.txt", "link/b.txt"]


def test_files_of_other_kinds_are_counted_in_one_line(tmp_path, capsys):
    write(tmp_path, "a.txt", "b.raw.gz", "c.raw.gz", "README.md", "Makefile", "d.csv", "e.tsv", "f.CSV")
    for _ in range(2):
        assert texts(tmp_path) == ["a.txt"]
    kinds = ".txt, .jsonl (each plain, .gz, .zst or .xz) or .parquet files are read"
    others = "2 .raw.gz, 1 Makefile, 1 .md, 1 .csv and 2 more"
    assert capsys.readouterr().err == (
        f"corpus {str(tmp_path)!r}: 7 files of other kinds ({others}) left out; {kinds}\n"
    )


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.parquet"])
def test_bytes_read_add_up_to_the_size(tmp_path, name):
    text = "".join(f"{number} words\n\n" for number in range(300_000))
    write(tmp_path, name)
    if name == "a.parquet":
        pyarrow.parquet.write_table(pyarrow.table({"text": text.split("\n\n")[:-1]}), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    (part,) = sources.parts(str(tmp_path), "text")
    steps = []
    assert sum(1 for _ in part.documents(steps.append)) == 300_000
    assert sum(steps) == part.size == (tmp_path / name).stat().st_size
    assert len(steps) > 3 and min(steps) >= 0


def test_the_fingerprint_depends_on_name_and_content_and_not_on_the_folder(tmp_path):
    def fingerprint(place, name="a.txt", text="One."):
        (tmp_path / place).mkdir()
        (tmp_path / place / name).write_text(text)
        (part,) = sources.parts(str(tmp_path / place), "text")
        return part.fingerprint()

    first = fingerprint("first")
    assert fingerprint("second") == first
    assert fingerprint("renamed", name="b.txt") != first
    assert fingerprint("changed", text="Two.") != first


def test_fingerprint_of_a_large_file_reads_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "WHOLE_BYTES", 0)
    path = tmp_path / "a.txt"
    content = bytearray(b"x" * 80 * base.MIB)
    path.write_bytes(content)
    (part,) = sources.parts(str(path), "text")
    first = part.fingerprint()
    assert part.fingerprint() == first
    content[-1] = ord("y")
    path.write_bytes(content)
    assert part.fingerprint() != first


def test_corpora_under_the_names_under_which_they_are_published(tmp_path):
    """BabyLM's splits, C4's and Dolma's compressed JSON lines, and names in capital letters."""
    write(tmp_path / "capitals", "A.TXT", "B.VALID")
    assert texts(tmp_path / "capitals") == ["A.TXT", "B.VALID"]
    write(tmp_path / "babylm", "gutenberg.train", "childes.dev", "bnc_spoken.test")
    assert texts(tmp_path / "babylm") == ["bnc_spoken.test", "childes.dev", "gutenberg.train"]
    (tmp_path / "c4").mkdir()
    with gzip.open(tmp_path / "c4" / "c4-train.00000-of-00001.json.gz", "wt") as file:
        file.write('{"text": "One."}\n{"text": "Two."}\n')
    assert texts(tmp_path / "c4") == ["One.", "Two."]


@pytest.mark.parametrize(
    "name, hint",
    [
        ("wiki_00", "wiki_00 is WikiExtractor's: extract with --json, and name its files wiki_00.jsonl"),
        ("wiki_117.bz2", "wiki_117 is WikiExtractor's: extract with --json"),
        ("fineweb.json", "name fineweb.json fineweb.jsonl if each of its lines is a JSON object"),
        ("text.raw", "name one that does, or rename text to .txt and JSON lines to .jsonl"),
    ],
)
def test_published_names_that_are_not_read_have_the_name_to_give_them(tmp_path, capsys, name, hint):
    write(tmp_path, name)
    assert hint in error_of(tmp_path)
    write(tmp_path, "a.txt")
    assert texts(tmp_path) == ["a.txt"]
    assert (hint in capsys.readouterr().err) == (name != "text.raw")


def test_a_folder_of_the_datasets_library_is_named(tmp_path):
    """`save_to_disk` writes settings as .json beside its .arrow files; only hf: reads them."""
    datasets.Dataset.from_dict({"text": ["One.", "Two."]}).save_to_disk(tmp_path)
    assert "hf: and the absolute path" in error_of(tmp_path) and ".jsonl" not in error_of(tmp_path).split(";")[1]


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """A folder of this machine behind gs://, through the road that epath takes to a real bucket."""

    class Bucket(DirFileSystem):
        protocol = ("gcs", "gs")
        cachable = False

        def __init__(self, **options):
            super().__init__(str(tmp_path / "gs"), LocalFileSystem())

        def _join(self, path):
            return super()._join(
                [self._strip_protocol(one) for one in path] if isinstance(path, list) else self._strip_protocol(path)
            )

        @classmethod
        def _strip_protocol(cls, path):
            return os.fspath(path).removeprefix("gs://").rstrip("/")

    monkeypatch.setattr(epath.backend._FileSystemSpecBackend, "_get_filesystem", lambda self, name: Bucket())
    (tmp_path / "gs").mkdir()
    return tmp_path / "gs" / "bucket"


def test_a_bucket_is_read_like_a_folder(bucket):
    bucket.mkdir()
    write(bucket, "texts/b.txt", "texts/a.parquet", "texts/c.txt.gz")
    write(bucket / "texts", "sub/d.txt")
    assert texts("gs://bucket/texts") == ["texts/a.parquet", "texts/b.txt", "texts/c.txt.gz", "sub/d.txt"]
    assert texts("gs://bucket/texts/b.txt") == ["texts/b.txt"]
    assert texts("gs://bucket/te*/*.txt") == ["texts/b.txt"]
    assert "does not exist" in error_of("gs://bucket/none.txt") and "`**`" in error_of("gs://bucket/**/*.txt")
    local, remote = (sources.parts(corpus, "text") for corpus in (str(bucket), "gs://bucket"))
    assert [part.fingerprint() for part in local] == [part.fingerprint() for part in remote]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.zst", "a.parquet"])
def test_a_remote_failure_always_stops(bucket, monkeypatch, name):
    """A network failure is not a bad document: skipping the rest of the file would go unnoticed."""
    bucket.mkdir()
    write(bucket, name)
    (part,) = sources.parts(f"gs://bucket/{name}", "text")

    class Broken(io.RawIOBase):
        def readinto(self, buffer):
            raise ValueError("the connection was lost\nby the peer")

        def seek(self, offset, whence=0):
            return 99

    monkeypatch.setattr(epath.backend._FileSystemSpecBackend, "open", lambda self, path, mode: Broken())
    monkeypatch.setattr(storage, "_WAIT", tenacity.wait_none())
    errors = []
    with pytest.raises(base.UserError, match="cannot be read: the connection was lost; check the path and"):
        list(part.documents(on_bad=errors.append))
    assert not errors


def test_reading_goes_on_where_a_connection_was_lost(bucket, monkeypatch):
    bucket.mkdir()
    text = "".join(f"{number} words\n\n" for number in range(300_000))
    (bucket / "a.txt").write_text(text)
    monkeypatch.setattr(storage, "_WAIT", tenacity.wait_none())
    opened = epath.backend._FileSystemSpecBackend.open
    lost = []

    class Unsteady(io.RawIOBase):
        def __init__(self, file):
            self._file, self._reads = file, 0

        def readinto(self, buffer):
            self._reads += 1
            if self._reads == 3:
                lost.append(self)
                raise ConnectionResetError
            return self._file.readinto(buffer)

        def seek(self, offset, whence=0):
            return self._file.seek(offset, whence)

    monkeypatch.setattr(
        epath.backend._FileSystemSpecBackend, "open", lambda self, path, mode: Unsteady(opened(self, path, mode))
    )
    (part,) = sources.parts("gs://bucket/a.txt", "text")
    assert [document.text for document in part.documents()] == [f"{number} words" for number in range(300_000)]
    assert len(lost) >= 2


def test_an_unknown_scheme_and_a_missing_library(monkeypatch):
    assert "cannot be read" in error_of("s4://bucket/a.txt")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    # fsspec keeps the classes that another test made it import.
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "gcs", raising=False)
    monkeypatch.setattr(epath.backend._FileSystemSpecBackend, "_get_filesystem", lambda self, name: filesystem(name))
    assert "pip install '.[data,gcs,tfds]'" in error_of("gs://bucket/a.txt")


def test_hidden_files_and_folders_are_not_corpora(tmp_path):
    write(tmp_path, "a.txt", ".hidden.txt", ".git/x.txt", "sub/.b.txt", "sub/c.txt")
    assert texts(tmp_path) == texts(tmp_path / "**" / "*") == ["a.txt", "sub/c.txt"]
    assert texts(tmp_path / ".hidden.txt") == [".hidden.txt"]  # named by itself, it is meant


@pytest.mark.parametrize(
    "corpus, library",
    [
        ("a.txt.zst", "pyarrow"),
        ("a.parquet", "pyarrow"),
        ("hf:some/set", "datasets"),
        ("tfds:some/set", "tensorflow_datasets"),
    ],
)
def test_a_missing_library_is_named(tmp_path, monkeypatch, corpus, library):
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    if "." in corpus:
        (tmp_path / corpus).write_bytes(b"anything")
        corpus = tmp_path / corpus
    message = error_of(corpus)
    extra = "tfds" if library == "tensorflow_datasets" else "data"
    assert f"needs {library}, which is not installed; pip install '.[{extra}]'" in message
    (tmp_path / "b.txt").write_text("One.")
    assert texts(tmp_path / "b.txt") == ["One."]


def test_a_plain_file_imports_none_of_them(tmp_path):
    (tmp_path / "a.txt").write_text("One.")
    code = (
        "import sys; from bertjax.data import sources\n"
        f"assert [d.text for d in sources.documents({str(tmp_path)!r}, 'text')] == ['One.']\n"
        "print([name for name in ('pyarrow', 'datasets', 'tensorflow_datasets', 'jax') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
