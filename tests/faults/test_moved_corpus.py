"""A run resumes from its token store: the corpus may be gone or changed, and is not read."""

import contextlib
import shutil
from pathlib import Path

import pytest

from tests import runs


def value_of(flags, name):
    [value] = [flag.split("=", 1)[1] for flag in flags if flag.startswith(f"--config.{name}=")]
    return Path(value)


@contextlib.contextmanager
def without(path):
    """Nothing is at this path meanwhile."""
    hidden = path.with_name("hidden")
    path.rename(hidden)
    try:
        yield
    finally:
        if path.exists():
            path.unlink()
        hidden.rename(path)


@pytest.fixture
def stopped(undisturbed, tmp_path):
    """The same run, ten steps before its end."""
    shutil.copytree(undisturbed, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "100")
    shutil.rmtree(tmp_path / "run" / "export")
    return tmp_path / "run"


@pytest.mark.parametrize("now", ["gone", "changed"])
def test_without_the_corpus_a_run_ends_with_equal_bits(flags, undisturbed, stopped, now, capsys):
    corpus = value_of(flags, "data.corpus")
    with without(corpus):
        if now == "changed":
            corpus.write_text("Another text.\n\nAnd another.")
        assert runs.call(*flags, f"--workdir={stopped}") == 0
    assert runs.weights(stopped) == runs.weights(undisturbed)
    assert runs.losses(stopped) == runs.losses(undisturbed)
    [line] = [line for line in capsys.readouterr().out.splitlines() if "is not read" in line]
    assert line.startswith("the token store of the run is ") and f"corpus {str(corpus)!r} is not read" in line


@pytest.mark.parametrize("case", ["neither", "another corpus"])
def test_without_the_store_the_corpus_is_compared(flags, stopped, tmp_path, case, capsys):
    corpus, elsewhere = value_of(flags, "data.corpus"), f"--config.data.store={tmp_path / 'stores'}"
    before = runs.content(stopped)
    if case == "neither":
        with without(corpus):
            assert runs.call(*flags, elsewhere, f"--workdir={stopped}") == 2
        complaints = [f"corpus {str(corpus)!r} does not exist", f"{tmp_path / 'stores'} does not hold the token store"]
    else:
        other = runs.write_corpus(tmp_path / "other.txt", documents=59)
        assert runs.call(*flags, f"--config.data.corpus={other}", elsewhere, f"--workdir={stopped}") == 2
        complaints = ["holds a run with other settings (data.store_fingerprint: "]
    error = capsys.readouterr().err
    assert error.count("error: ") == 1 and all(complaint in error for complaint in complaints), error
    changed = {".lock", "heartbeat.json", "elapsed.json"}
    assert {name: held for name, held in runs.content(stopped).items() if name not in changed} == {
        name: held for name, held in before.items() if name not in changed
    }
