"""Bad input through the command line: exit code 2, one line that starts with `error:`, and nothing lost."""

import json
import shutil
from pathlib import Path

import pytest

from bertjax.cli import evaluate, prepare
from bertjax.config import config_file
from bertjax.runtime import command_line
from tests import runs
from tests.data.preparation.corpora import store_path

JSON_LINES = [json.dumps({"text": f"Story {i} begins. It ends {i} days on."}) for i in range(40)]


def _corpus(path: Path, content: bytes | str) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return f"--config.data.corpus={path}"


@pytest.mark.parametrize(
    "name, content, complaints",
    [
        ("latin.txt", "One caf\u00e9.\n\nTwo.\n".encode("latin-1"), ["latin.txt:1 is not UTF-8: its byte 7 is 0xe9"]),
        ("small.jsonl", "\n".join(JSON_LINES), ["vocab_size=400 is too large"]),
    ],
)
def test_corpus(refused, tmp_path, name, content, complaints):
    error = refused(_corpus(tmp_path / name, content))
    assert all(complaint in error for complaint in complaints), error
    assert (tmp_path / name).exists()


def test_a_workdir_of_another_run_is_not_changed(flags, undisturbed, tmp_path, capsys):
    shutil.copytree(undisturbed, tmp_path / "run")
    changed = ["--config.seed=5", "--config.optimizer.learning_rate=0.5"]
    before = runs.content(tmp_path / "run")
    assert runs.call(*flags, *changed, f"--workdir={tmp_path / 'run'}") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "seed: 0 -> 5" in error and "optimizer.learning_rate: 0.002 -> 0.5" in error
    assert runs.content(tmp_path / "run") == before | {".lock": b""}


@pytest.fixture
def own_store(flags, undisturbed, tmp_path) -> Path:
    """A copy of the token store that may be damaged; its parent is the place to look for it."""
    first, *overrides = [flag.removeprefix("--config").lstrip("=.") for flag in flags]
    store = store_path(config_file.load(first, overrides).data)  # other tests may have made other stores beside it
    return Path(shutil.copytree(store, tmp_path / "stores" / store.name))


def _cut(store):
    (store / "train.tokens.bin").write_bytes((store / "train.tokens.bin").read_bytes()[:-10])


def _alter(store):
    content = bytearray((store / "train.tokens.bin").read_bytes())
    content[100] ^= 1
    (store / "train.tokens.bin").write_bytes(content)


def _remove(store):
    (store / "heldout.sentences.bin").unlink()


def _other_tokenizer(store):
    for name in ("tokenizer.model", "bertjax_tokenizer.json"):
        record = (store / "tokenizer" / name).read_bytes()
        (store / "tokenizer" / name).write_bytes(record + b" ")


def _from_the_future(store):
    manifest = json.loads((store / "manifest.json").read_text())
    (store / "manifest.json").write_text(json.dumps(manifest | {"format_version": 99}))


@pytest.mark.parametrize(
    "damage, complaint",
    [
        (_cut, "train.tokens.bin has"),
        (_alter, "train.tokens.bin was altered"),
        (_remove, "heldout.sentences.bin cannot be read"),
        (_other_tokenizer, "tokenizer.model was altered"),
        (_from_the_future, "format 99"),
    ],
)
def test_token_store(refused, own_store, damage, complaint):
    damage(own_store)
    before = runs.content(own_store)
    error = refused(f"--config.data.store={own_store.parent}")
    assert complaint in error, error
    assert runs.content(own_store) == before


def test_a_tokenizer_that_does_not_match_the_store(refused, own_store, flags, tmp_path):
    """The store of another vocabulary in the place of this one."""
    other = tmp_path / "other"
    smaller = [f"--config.data.store={other}", "--config.data.tokenizer.vocab_size=350"]
    assert prepare.main([*flags[:2], *smaller]) == 0
    [foreign] = [path for path in other.iterdir() if path.is_dir()]
    shutil.rmtree(own_store / "tokenizer")
    shutil.copytree(foreign / "tokenizer", own_store / "tokenizer")
    assert "its tokenizer was replaced" in refused(f"--config.data.store={own_store.parent}")


@pytest.mark.parametrize(
    "damage, complaint",
    [
        (lambda folder: _set(folder / "bertjax.json", format_version=99), "has format 99"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"cut"), "is damaged"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda folder: (folder / "tokenizer" / "tokenizer.model").write_bytes(b"x"), "was altered"),
    ],
)
def test_export(undisturbed, tmp_path, capsys, damage, complaint):
    shutil.copytree(undisturbed / "export", tmp_path / "export")
    damage(tmp_path / "export")
    assert command_line.exit_code_of(lambda: evaluate.main([str(tmp_path / "export"), "--platform=cpu"])) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and complaint in error, error


def _set(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
