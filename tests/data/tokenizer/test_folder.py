"""The folder of a saved tokenizer: round trip, other libraries, another format, and damaged files."""

import copy
import json
import pickle

import pytest
import tokenizers

from bertjax.data import tokenizer
from bertjax.data.tokenizer_config import HUGGINGFACE_KINDS, SENTENCEPIECE_KINDS
from bertjax.runtime.errors import UserError

KINDS = SENTENCEPIECE_KINDS + HUGGINGFACE_KINDS


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


@pytest.mark.parametrize("first, second", [("unigram", "wordpiece"), ("wordpiece", "unigram")])
def test_the_tokenizer_that_is_saved_last_is_loaded(tmp_path, trained, first, second):
    trained[first].save(tmp_path)
    trained[second].save(tmp_path)
    assert tokenizer.load(tmp_path) == trained[second]


@pytest.mark.parametrize("kind, model", [("unigram", "tokenizer.model"), ("wordpiece", "tokenizer.json")])
def test_an_altered_folder_or_one_of_another_format_is_refused(tmp_path, trained, kind, model):
    with pytest.raises(UserError, match="no readable tokenizer"):
        tokenizer.load(tmp_path)
    trained[kind].save(tmp_path)
    (tmp_path / model).write_bytes(trained[kind].model + b" ")
    with pytest.raises(UserError, match=f"{model} was altered"):
        tokenizer.load(tmp_path)
    record = json.loads((tmp_path / "bertjax_tokenizer.json").read_text())
    for version in (1, 3):
        (tmp_path / "bertjax_tokenizer.json").write_text(json.dumps({"format_version": version}))
        line = f"the tokenizer in {tmp_path} has format {version}, and this bertjax reads format 2; use "
        with pytest.raises(UserError, match=f"^{line}the version that wrote it$"):
            tokenizer.load(tmp_path)
    for damaged in ([1], {"format_version": 2}, record | {"model_file": "../model"}):
        (tmp_path / "bertjax_tokenizer.json").write_text(json.dumps(damaged))
        with pytest.raises(UserError, match="no readable tokenizer"):
            tokenizer.load(tmp_path)
