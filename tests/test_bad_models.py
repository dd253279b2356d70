"""Bad exports, tokenizers, checkpoints of transformers and runs, and the line in which reading each of them ends."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bertjax.config import export
from bertjax.config.opening import SavedModel
from bertjax.data import tokenizer
from bertjax.interop import huggingface
from bertjax.runtime.errors import UserError
from tests.interop import models

Damage = Callable[[Path], object]


def _edit(path: Path, *keys: str, to: object = None, delete: bool = False) -> None:
    """Set or delete one entry of a JSON file."""
    root = record = json.loads(path.read_text())
    for key in keys[:-1]:
        record = record[key]
    if delete:
        del record[keys[-1]]
    else:
        record[keys[-1]] = to
    path.write_text(json.dumps(root))


def _manifest(*keys: str, **change: object) -> Damage:
    return lambda folder: _edit(folder / "bertjax.json", *keys, **change)


def _config(*keys: str, **change: object) -> Damage:
    return lambda folder: _edit(folder / "config.json", *keys, **change)


def _text(name: str, content: str | bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def _arrays(change: Callable[[dict[str, np.ndarray]], object]) -> Damage:
    def damage(folder: Path) -> None:
        arrays = load_file(folder / "model.safetensors")
        change(arrays)
        save_file(arrays, folder / "model.safetensors")

    return damage


def _header(change: Callable[[dict], object]) -> Damage:
    def damage(folder: Path) -> None:
        content = (folder / "model.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        change(header)
        encoded = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + content[8 + length :])

    return damage


def _instead(name: str, make: Callable[[Path], object]) -> Damage:
    """Put something else in the place of a file."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return damage


_WORD, _POOLER = "encoder/embeddings/word", "encoder/pooler/kernel"
_NOT_A_FILE = "model.safetensors.*it is not a file"

EXPORTS: dict[str, tuple[Damage, str]] = {
    "empty manifest": (_text("bertjax.json", ""), "is damaged (Expecting value"),
    "manifest is a list": (_text("bertjax.json", "[1]"), "bertjax.json has no format_version"),
    "manifest is a number": (_text("bertjax.json", "1"), "bertjax.json has no format_version"),
    "manifest is Latin-1": (_text("bertjax.json", '{"caf\u00e9": 1}'.encode("latin-1")), "codec can't decode"),
    "manifest is nested": (_text("bertjax.json", "[" * 10**5 + "]" * 10**5), "nested in more than 64 levels"),
    "manifest is a folder": (_instead("bertjax.json", Path.mkdir), "it is not a file"),
    "manifest is a loop": (_instead("bertjax.json", lambda path: path.symlink_to(path.name)), "holds neither"),
    "no version": (_manifest("format_version", delete=True), "bertjax.json has no format_version"),
    "version is text": (_manifest("format_version", to="1"), "format_version='1' is not of type int"),
    "version is true": (_manifest("format_version", to=True), "format_version=True is not of type int"),
    "version is huge": (_manifest("format_version", to=10**30), "reads format 1; use the version that wrote it"),
    "no settings": (_manifest("config", delete=True), "bertjax.json has no config"),
    "settings are a list": (_manifest("config", to=[]), "config=[] is not of type dict"),
    "settings are text": (_manifest("config", to="x"), "config='x' is not of type dict"),
    "tasks are a list": (_manifest("config", "tasks", to=[]), "tasks=[] is not of type dict"),
    "a task is text": (_manifest("config", "tasks", to={"bert": "x"}), "bert='x' is not of type dict"),
    "classes are a number": (
        _manifest("config", "tasks", to={"bert": {"objective": {"classes": 1}}}),
        "classes=1 is not of type list",
    ),
    "no numbers": (_manifest("numbers", to=None), "numbers=None is not of type dict"),
    "no model": (_manifest("config", "model", delete=True), "model or runtime does not hold settings by name"),
    "width is text": (_manifest("config", "model", "width", to="16"), "model.width='16' is str; it must be an integer"),
    "unknown setting": (_manifest("config", "model", "widht", to=16), "'model.widht'; did you mean 'width'?"),
    "too many layers": (_manifest("config", "model", "layers", to=10**12), "is larger than any encoder"),
    "another depth": (_manifest("config", "model", "layers", to=7), "has other arrays than model.safetensors"),
    "vocabulary is text": (_manifest("vocab_size", to="60"), "vocab_size='60' is not of type int"),
    "vocabulary is huge": (_manifest("vocab_size", to=10**12), "model.vocab_size=1000000000000 must be between 1 and"),
    "another vocabulary": (_manifest("vocab_size", to=61), "its tokenizer has 60 ids and bertjax.json 61"),
    "weights are a folder": (_instead("model.safetensors", Path.mkdir), _NOT_A_FILE),
    "weights are a pipe": (_instead("model.safetensors", os.mkfifo), _NOT_A_FILE),
    "weights are a device": (_instead("model.safetensors", lambda path: path.symlink_to("/dev/zero")), _NOT_A_FILE),
    "weights are a pointer": (_text("model.safetensors", "version https://git-lfs.github.com/spec/v1"), "git lfs pull"),
    "weights are empty": (_text("model.safetensors", b""), "is damaged (Error while deserializing header"),
    "a header of 2^60 bytes": (_text("model.safetensors", struct.pack("<Q", 2**60) + b"{}"), "deserializing header"),
    "no arrays": (_arrays(dict.clear), "embeddings/norm/bias' 16 -> none"),
    "an array less": (_arrays(lambda a: a.pop(_WORD)), "'embeddings/word' 60x16 -> none"),
    "half a pooler": (_arrays(lambda a: a.pop(_POOLER)), "'pooler/kernel' 16x16 -> none"),
    "an array more": (_arrays(lambda a: a.update({"encoder/x": np.zeros(1, "f4")})), "'x' none -> 1"),
    "an unknown root": (_arrays(lambda a: a.update({"x/y": np.zeros(1, "f4")})), "array 'x/y', which no model has"),
    "an empty name": (_arrays(lambda a: a.update({"": np.zeros(1, "f4")})), "array '', which no model has"),
    "an array and a folder": (_arrays(lambda a: a.update({"heads": np.zeros(1, "f4")})), "array 'heads', which no"),
    "half precision": (_arrays(lambda a: a.update({_WORD: a[_WORD].astype("f2")})), f"array {_WORD} is float16"),
    "not a number": (_arrays(lambda a: a[_POOLER].fill(np.nan)), f"not finite in {_POOLER}; take an earlier RUN@STEP"),
    "another width": (_arrays(lambda a: a.update({_POOLER: a[_POOLER][:8]})), "'pooler/kernel' 16x16 -> 8x16"),
    "rows of a head": (
        _arrays(lambda a: a.update({"heads/mlm/word_bias": a["heads/mlm/word_bias"][:3]})),
        "heads/mlm/word_bias has no row for each of the 60 tokens",
    ),
    "unknown numbers": (_header(lambda header: header[_WORD].update(dtype="F3")), "is damaged ("),
    "a larger shape": (_header(lambda header: header[_WORD].update(shape=[2**40, 2**20])), "is damaged ("),
    "no tokenizer": (lambda folder: shutil.rmtree(folder / "tokenizer"), "holds no readable tokenizer"),
}
TOKENIZERS: dict[str, tuple[Damage, str]] = {
    "record is a list": (_text("bertjax_tokenizer.json", "[]"), "holds no readable tokenizer"),
    "record is nested": (_text("bertjax_tokenizer.json", "[" * 999 + "]" * 999), "nested in more than 64 levels"),
    "record is a folder": (_instead("bertjax_tokenizer.json", Path.mkdir), "it is not a file"),
    "version is text": (
        lambda folder: _edit(folder / "bertjax_tokenizer.json", "format_version", to="2"),
        "format_version='2' is not an integer",
    ),
    "model elsewhere": (
        lambda folder: _edit(folder / "bertjax_tokenizer.json", "model_file", to="../../secret"),
        "holds no readable tokenizer (KeyError('../../secret'))",
    ),
    "model is a list": (
        lambda folder: _edit(folder / "bertjax_tokenizer.json", "model_file", to=[]),
        "holds no readable tokenizer (TypeError",
    ),
    "model is missing": (lambda folder: (folder / "tokenizer.json").unlink(), "No such file"),
    "model is a pipe": (_instead("tokenizer.json", os.mkfifo), "it is not a file"),
    "another fingerprint": (
        lambda folder: _edit(folder / "bertjax_tokenizer.json", "fingerprint", to="0"),
        "tokenizer.json was altered after it was written; restore the folder",
    ),
}
# The author of these has written the fingerprint, too.
MODELS: dict[str, tuple[Callable[[dict], object], str]] = {
    "no pieces": (
        lambda d: (d["model"].update(vocab={}), d["added_tokens"].clear()),
        "(ValueError('it has no pieces'))",
    ),
    "a huge id": (lambda d: d["model"]["vocab"].update(abc=2**32 - 2), "its largest id is"),
    "an id too large": (lambda d: d["model"]["vocab"].update(abc=2**40), "holds no readable tokenizer"),
    "an id that is text": (lambda d: d["model"]["vocab"].update(abc="x"), "holds no readable tokenizer"),
    "no [MASK]": (
        lambda d: (d["model"]["vocab"].pop("[MASK]"), d["added_tokens"].pop()),
        "holds no readable tokenizer (KeyError('<mask>'))",
    ),
    "no [UNK]": (lambda d: d["model"].update(unk_token="x"), "holds no readable tokenizer"),
    "another kind": (lambda d: d["model"].update(type="Unigram"), "holds no readable tokenizer"),
    "no kind": (lambda d: d.pop("model"), "holds no readable tokenizer"),
    "a prefix that is a list": (lambda d: d["model"].update(continuing_subword_prefix=[]), "no readable tokenizer"),
    "an unknown step": (lambda d: d["pre_tokenizer"].update(type="Evil"), "holds no readable tokenizer"),
}
CHECKPOINTS: dict[str, tuple[Damage, str]] = {
    "settings are a list": (_text("config.json", "[]"), "holds a list, not settings by name"),
    "settings are cut": (_text("config.json", '{"model_type"'), "config.json is not readable JSON"),
    "settings are nested": (_text("config.json", '{"a":' * 10**5), "is not readable JSON (it is nested in more"),
    "no family": (_config("model_type", delete=True), "model_type=None; bertjax converts bert"),
    "family is a list": (_config("model_type", to=["bert"]), "model_type=['bert']; bertjax converts bert"),
    "activation is a list": (_config("hidden_act", to=[]), "cannot be read"),
    "width is text": (_config("hidden_size", to="16"), "hidden_size='16', which is not a whole number"),
    "width is true": (_config("hidden_size", to=True), "hidden_size=True, which is not a whole number"),
    "no heads": (_config("num_attention_heads", to=0), "model.heads=0 must be at least 1"),
    "too many layers": (_config("num_hidden_layers", to=10**9), "has 1000000000 layers and the weights"),
    "weights are a pipe": (_instead("model.safetensors", os.mkfifo), "model.safetensors is damaged or cut short"),
    "half precision that overflowed": (
        _arrays(lambda a: a.update({name: np.full(a[name].shape, np.inf, "f2") for name in list(a)[:1]})),
        "the checkpoint has values that are not finite in",
    ),
    "its steps are a list": (
        lambda folder: _edit(folder / "tokenizer.json", "added_tokens", to=[1]),
        "the tokenizer in",
    ),
}
RUNS: dict[str, tuple[Damage, str]] = {
    "record is a list": (_text("config.json", "[]"), "config.json is damaged"),
    "record is cut": (_text("config.json", '{"format'), "config.json is damaged"),
    "record is nested": (_text("config.json", "[" * 10**5 + "]" * 10**5), "config.json is damaged"),
    "settings are a list": (_config("config", to=[]), "config.json is damaged"),
    "no stages": (_config("config", "stages", delete=True), "config.json is damaged"),
    "version is text": (_config("format_version", to="1"), "config.json is damaged"),
    "vocabulary is huge": (_config("vocab_size", to=10**12), "vocab_size=1000000000000 must be between"),
    "no checkpoints": (lambda folder: shutil.rmtree(folder / "checkpoints"), "has no checkpoints; train it until"),
    "no tokenizer": (lambda folder: shutil.rmtree(folder / "tokenizer"), "holds no readable tokenizer"),
}


def _table(table: dict) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("damage, line", table.values(), ids=table)


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """A folder with an export and the same as a checkpoint of transformers."""
    folder = tmp_path_factory.mktemp("original")
    model = models.make(models.CLASSES["bert"]["BertForPreTraining"], models.trained())
    export.write(folder / "export", model)
    huggingface.write(folder / "hf", model)
    return folder


def _refuses(read: Callable[[], object], line: str) -> None:
    with pytest.raises(UserError) as caught:
        read()
    text = str(caught.value)
    first, _, last = line.partition(".*")
    assert first in text and last in text, text
    assert "\n" not in text and len(text) < 1000


@_table(EXPORTS)
def test_export(original, tmp_path, damage, line):
    folder = shutil.copytree(original / "export", tmp_path / "export")
    damage(folder)

    def read() -> None:
        saved = SavedModel(folder)
        _ = saved.export, saved.config

    _refuses(read, line)


@_table(TOKENIZERS)
def test_tokenizer(original, tmp_path, damage, line):
    folder = shutil.copytree(original / "export" / "tokenizer", tmp_path / "tokenizer")
    damage(folder)
    _refuses(lambda: tokenizer.load(folder), line)


@_table(MODELS)
def test_model_of_a_tokenizer(original, tmp_path, damage, line):
    made = tokenizer.load(original / "export" / "tokenizer")
    description = json.loads(made.model)
    damage(description)
    type(made)(json.dumps(description).encode()).save(tmp_path)
    _refuses(lambda: tokenizer.load(tmp_path), line)


@_table(CHECKPOINTS)
def test_checkpoint_of_transformers(original, tmp_path, damage, line):
    folder = shutil.copytree(original / "hf", tmp_path / "hf")
    damage(folder)
    _refuses(lambda: huggingface.read(folder), line)


@_table(RUNS)
def test_run(undisturbed, tmp_path, damage, line):
    folder = shutil.copytree(undisturbed, tmp_path / "run")
    damage(folder)
    _refuses(lambda: SavedModel(folder).export, line)
