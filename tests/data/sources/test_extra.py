"""A library of the extras `data` and `tfds` is needed only for corpora that it reads."""

import subprocess
import sys

import pytest

from tests.data.sources.reading import error_of, texts


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
