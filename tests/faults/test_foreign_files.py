"""Files that somebody else made, mutated: each loads or ends in one line, runs nothing and takes no more than its size.

Nothing is compiled: the files are read, and texts are tokenized. The first mutations are tried by default, all of them
with `-m slow`.
"""

import contextlib
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bertjax.config import export
from bertjax.config.opening import SavedModel
from bertjax.data import tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.inference.predictor import Predictor
from bertjax.interop import card, huggingface
from bertjax.runtime.errors import UserError
from tests.data.tokenizer.conftest import sentences_of
from tests.faults import mutations
from tests.interop import models

_FIRST, ALL = 300, 2000
_SECONDS = 20.0  # of processors
_MEMORY = 1 << 30
_TEXT = "abd cef [MASK] \u00e9\uac00."
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events of sys.audit that reading never causes.
_REFUSED = (
    *("subprocess", "socket.connect", "pickle.find_class", "shutil"),
    *("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.remove", "os.rename", "os.mkdir", "os.link"),
)

_events: list[tuple] = []
_is_watching = False


def _watch(event: str, arguments: tuple) -> None:
    if not _is_watching:
        return
    is_written = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING
    if is_written or event.startswith(_REFUSED):
        _events.append((event, arguments))


sys.addaudithook(_watch)  # it cannot be removed


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Fail if the block writes a file, starts a process, connects or unpickles."""
    global _is_watching
    _events.clear()
    _is_watching = True
    try:
        yield
    finally:
        _is_watching = False
    assert _events == []


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> dict[str, tuple[Path, Callable[[Path], object]]]:
    """{name: (a folder, the function that reads it)} of every kind of folder that somebody else may have made."""
    root = tmp_path_factory.mktemp("originals")
    sentences = sentences_of("embedded:en", 12)
    folders = {}
    model = models.make(models.CLASSES["bert"]["BertForPreTraining"], models.trained())
    model = model._replace(numbers={"eval": {"mlm_loss": 1.5}, "steps": 10})
    export.write(root / "export", model)
    folders["export"] = root / "export", _read_export
    for kind in ("wordpiece", "byte_bpe", "unigram", "char"):
        (root / kind / "tokenizer").mkdir(parents=True)
        made = tokenizer.train(sentences, TokenizerConfig(kind=kind, vocab_size=800))
        made.save(root / kind / "tokenizer")
        folders[kind] = root / kind, lambda folder: _read_tokenizer(folder / "tokenizer")
    huggingface.write(root / "safetensors", model)
    folders["safetensors"] = root / "safetensors", lambda folder: huggingface.read(folder)
    pieces = tokenizer.load(root / "unigram" / "tokenizer")
    huggingface.write(root / "sentencepiece", models.make(frozenset({"mlm"}), pieces, "albert"))
    folders["sentencepiece"] = root / "sentencepiece", lambda folder: huggingface.read(folder)
    return folders


def _read_export(folder: Path) -> None:
    saved = SavedModel(folder)
    model = saved.export
    assert model.tokenizer.rows([_TEXT], 8)[0].shape == (1, 8)
    assert model.encoder.vocab_size == model.tokenizer.vocab_size
    _ = saved.config
    assert Predictor(model).default in ("task", "fill", "embed")
    if model.numbers:
        card._data(model)


def _read_tokenizer(folder: Path) -> None:
    read = tokenizer.load(folder)
    encoded = read.encode([_TEXT])
    read.decode(encoded[0])
    read.rows([_TEXT], 8)
    assert max(read.special_ids | read.continuation_ids | read.byte_ids) < read.vocab_size
    for name in ("tokenizer.model", "tokenizer.json"):
        if (folder / name).exists():
            tokenizer.from_model(folder / name)


def _try(name: str, original: Path, read: Callable[[Path], object], place: Path, seed: int) -> str:
    """Return `loads`, or the line in which reading a mutated folder ends."""
    folder = mutations.copied(original, place)
    change = mutations.mutate(folder, seed)
    start = time.process_time()
    try:
        with _watched():
            read(folder)
    except UserError as error:
        outcome = str(error)
        assert "\n" not in outcome and 10 < len(outcome) < 2000, (name, seed, change, outcome[:3000])
    except BaseException as error:
        raise AssertionError(f"{name}, seed {seed}: {change}: {type(error).__name__}: {str(error)[:500]}") from error
    else:
        outcome = "loads"
    assert time.process_time() - start < _SECONDS, (name, seed, change)
    return outcome


def _fuzz(originals: dict, tmp_path: Path, seeds: range, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for original, read in originals.values():  # imports what reading needs
        read(original)
    kinds = [*originals, "export", "export"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = []
    for seed in seeds:
        name = kinds[seed % len(kinds)]
        outcomes.append(_try(name, *originals[name], tmp_path / "folder", seed))
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < _MEMORY, f"{grown:,} bytes"
    assert set(sys.modules).isdisjoint(mutations.MODULES)
    assert {path.name for path in tmp_path.iterdir()} == {"evil.py", "folder"}
    return outcomes


@pytest.mark.slow
def test_mutated_files_load_or_end_in_one_line(originals, tmp_path, monkeypatch):
    outcomes = _fuzz(originals, tmp_path, range(_FIRST), monkeypatch)
    loads = outcomes.count("loads")
    assert 0.02 < loads / len(outcomes) < 0.7, "the mutations change too much or too little"


@pytest.mark.slow
def test_two_thousand_mutated_files_load_or_end_in_one_line(originals, tmp_path, monkeypatch):
    outcomes = _fuzz(originals, tmp_path, range(_FIRST, ALL), monkeypatch)
    assert len(outcomes) == ALL - _FIRST and len(set(outcomes)) > 300
