"""Files, folders and globs, local and remote: the files, their order, and the errors if there are none."""

import gzip
import io
import os
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest
import tenacity
from etils import epath
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from bertjax.data import sources
from bertjax.runtime import storage
from tests.data.sources.reading import error_of, texts


def write(folder, *names):
    """Files whose one text is their own name."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            pyarrow.parquet.write_table(pyarrow.table({"text": [name]}), path)
        else:
            path.write_bytes(gzip.compress(name.encode()) if path.suffix == ".gz" else name.encode())


def test_a_glob_of_folders_says_how_to_read_them(tmp_path, capsys):
    write(tmp_path, "wiki/AA.txt/a.txt", "wiki/AB/b.txt")
    assert "matches folders only; end it with /** to read" in error_of(tmp_path / "wiki" / "*")
    assert texts(tmp_path / "wiki" / "**") == ["wiki/AA.txt/a.txt", "wiki/AB/b.txt"] and not capsys.readouterr().err
    write(tmp_path, "wiki/c.txt")
    assert texts(tmp_path / "wiki" / "*") == ["wiki/c.txt"]
    assert "2 folders left out; end it with /** to read" in capsys.readouterr().err


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


def test_files_of_other_kinds_are_counted(tmp_path, capsys):
    write(tmp_path, "text.raw")
    assert "name one that does, rename text to .txt" in error_of(tmp_path)
    write(tmp_path, "a.txt")
    assert texts(tmp_path) == ["a.txt"] and "1 file of other kinds (1 .raw) left out" in capsys.readouterr().err


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


def test_a_plain_file_imports_none_of_them(tmp_path):
    (tmp_path / "a.txt").write_text("One.")
    code = (
        "import sys; from bertjax.data import sources\n"
        f"assert [d.text for d in sources.documents({str(tmp_path)!r}, 'text')] == ['One.']\n"
        "print([name for name in ('pyarrow', 'datasets', 'tensorflow_datasets', 'jax') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
