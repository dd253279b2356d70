"""The folder of a saved tokenizer: round trip, other libraries, older and newer formats, and damaged files."""

import copy
import json
import pickle
from pathlib import Path

import pytest
import tokenizers

from bertjax.data import tokenizer
from bertjax.data.tokenizer_config import HUGGINGFACE_KINDS, SENTENCEPIECE_KINDS
from bertjax.errors import UserError

KINDS = SENTENCEPIECE_KINDS + HUGGINGFACE_KINDS
# Written by the last commit of format 1: 120 sentences, three kinds.
VERSION_1 = Path(__file__).parent / "version_1"
VERSION_1_FINGERPRINTS = {
    "wordpiece": "c0fc907f416633de3baae2d99df3249a0fef13d582af2fe8a2252bfdb79f214d",
    "byte_bpe": "6bcfedf12e5afa6c295721b40a8f833ed319e4b420db6c1c853861bf8d0a70bf",
    "char": "0c6417da3c8d78677ede3eb56e9b8d877f35db64c4a9b9de5503a3ca31dde010",
}
VERSION_1_IDS = {
    "wordpiece": [39, 52, 50],
    "byte_bpe": [270, 280, 281],
    "char": [7, 13, 14, 8, 7, 12, 13, 14, 8, 15, 7, 19, 12, 15, 16, 10],
}


def write_version_1(folder, tokens):
    """Write a folder of format 1 by hand."""
    choices = {"normalizer": tokens.normalizer} if hasattr(tokens, "normalizer") else {}
    record = {"format_version": 1, **choices, "fingerprint": tokens.fingerprint}
    (folder / "tokenizer.json").write_text(json.dumps(record))
    (folder / ("tokenizer.model" if choices else "huggingface.json")).write_bytes(tokens.model)


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load(tmp_path, trained, kind):
    trained[kind].save(tmp_path)
    loaded = tokenizer.load(tmp_path)
    assert loaded == trained[kind] and loaded.fingerprint == trained[kind].fingerprint
    assert tokenizer.from_model(tmp_path) == loaded
    text = "a word, and \u00e9\uac00 [MASK]"
    for copied in (loaded, pickle.loads(pickle.dumps(trained[kind])), copy.deepcopy(trained[kind])):
        assert copied.encode([text]) == trained[kind].encode([text])


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_json_is_the_file_of_the_tokenizers_library(tmp_path, trained, kind):
    trained[kind].save(tmp_path)
    model = "tokenizer.json" if kind in HUGGINGFACE_KINDS else "tokenizer.model"
    assert {path.name for path in tmp_path.iterdir()} == {model, "bertjax_tokenizer.json"}
    if kind in HUGGINGFACE_KINDS:
        opened = tokenizers.Tokenizer.from_file(str(tmp_path / model))
        text = "The same words, again."
        assert opened.encode(text).ids == trained[kind].encode([text])[0]
        assert tokenizer.from_model(tmp_path / model) == trained[kind]


@pytest.mark.parametrize("kind", VERSION_1_FINGERPRINTS)
def test_version_1_as_it_was_written(kind):
    loaded = tokenizer.load(VERSION_1 / kind)
    assert loaded.fingerprint == VERSION_1_FINGERPRINTS[kind]
    assert loaded.encode(["the other words"]) == [VERSION_1_IDS[kind]]
    assert tokenizer.from_model(VERSION_1 / kind) == loaded


@pytest.mark.parametrize("kind", KINDS)
def test_saving_replaces_version_1(tmp_path, trained, kind):
    """A resumed run writes its tokenizer again."""
    write_version_1(tmp_path, trained[kind])
    assert tokenizer.load(tmp_path) == trained[kind]
    trained[kind].save(tmp_path)
    assert tokenizer.load(tmp_path) == trained[kind]
    model = "tokenizer.json" if kind in HUGGINGFACE_KINDS else "tokenizer.model"
    assert {path.name for path in tmp_path.iterdir()} == {model, "bertjax_tokenizer.json"}


@pytest.mark.parametrize("first, second", [("unigram", "wordpiece"), ("wordpiece", "unigram")])
def test_the_tokenizer_that_is_saved_last_is_loaded(tmp_path, trained, first, second):
    trained[first].save(tmp_path)
    trained[second].save(tmp_path)
    assert tokenizer.load(tmp_path) == trained[second]


@pytest.mark.parametrize("kind, model", [("unigram", "tokenizer.model"), ("wordpiece", "tokenizer.json")])
def test_an_altered_or_newer_folder_is_refused(tmp_path, trained, kind, model):
    with pytest.raises(UserError, match="no readable tokenizer"):
        tokenizer.load(tmp_path)
    trained[kind].save(tmp_path)
    (tmp_path / model).write_bytes(trained[kind].model + b" ")
    with pytest.raises(UserError, match=f"{model} was altered"):
        tokenizer.load(tmp_path)
    record = json.loads((tmp_path / "bertjax_tokenizer.json").read_text())
    for newer in (record | {"format_version": 3}, {"format_version": 3}):
        (tmp_path / "bertjax_tokenizer.json").write_text(json.dumps(newer))
        with pytest.raises(
            UserError, match="^[^\n]* has tokenizer format 3, this bertjax reads up to 2; upgrade bertjax$"
        ):
            tokenizer.load(tmp_path)
    for damaged in ([1], {"format_version": 2}, record | {"model_file": "../model"}):
        (tmp_path / "bertjax_tokenizer.json").write_text(json.dumps(damaged))
        with pytest.raises(UserError, match="no readable tokenizer"):
            tokenizer.load(tmp_path)


@pytest.mark.parametrize("kind, model", [("unigram", "tokenizer.model"), ("wordpiece", "huggingface.json")])
def test_an_altered_folder_of_version_1_is_refused(tmp_path, trained, kind, model):
    write_version_1(tmp_path, trained[kind])
    (tmp_path / model).write_bytes(trained[kind].model + b" ")
    with pytest.raises(UserError, match=f"{model} was altered"):
        tokenizer.load(tmp_path)
    (tmp_path / model).unlink()
    with pytest.raises(UserError, match="no readable tokenizer"):
        tokenizer.load(tmp_path)
