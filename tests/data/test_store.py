"""The token store: what is written is read back, and damage is detected."""

import dataclasses
import json
import os
import pickle

import numpy as np
import pytest

from bertjax.data import store, tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.data.examples import Vocabulary, add_special_tokens
from bertjax.data.store import COUNTS, SPLITS, SplitWriter, TokenStore
from bertjax.runtime.errors import UserError

CONTENT = {"train": [[[7, 8, 9], [10]], [[11]], [[12, 1], [13, 14]]], "heldout": [[[8]], [[9, 9], [7, 1, 1]]]}
DOCUMENTS = {"train": {"a": 1, "b": 0, "c": 2}, "heldout": {"a": 2, "b": 0, "c": 0}}
CONTENTS = {
    "counts": {
        split: {source: dict.fromkeys(COUNTS, 10 * n) | {"documents": n} for source, n in sources.items()}
        for split, sources in DOCUMENTS.items()
    },
    "duplicates": {"a": 0, "b": 1, "c": 0},
    "skipped": {"a": 0, "b": 0, "c": 0},
    "longest": [[5, "c", "file:3"]],
}


@pytest.fixture(scope="module")
def trained():
    return tokenizer.train(["some words to train on"], TokenizerConfig(vocab_size=30, byte_fallback=False, kind="char"))


@pytest.fixture
def folder(tmp_path, trained):
    (tmp_path / "tokenizer").mkdir()
    trained.save(tmp_path / "tokenizer")
    for split in SPLITS:
        writer = SplitWriter(tmp_path, split)
        for documents in (CONTENT[split][:1], CONTENT[split][1:], []):
            sentences = [sentence for document in documents for sentence in document]
            tokens = np.array([token for sentence in sentences for token in sentence], np.uint16)
            writer.append(tokens, np.array([len(s) for s in sentences]), np.array([len(d) for d in documents]))
        writer.close()
    store.write_manifest(tmp_path, {"corpus": "1234"}, trained, CONTENTS)
    return tmp_path


def read(split):
    sentences = [split.tokens[a:b].tolist() for a, b in zip(split.sentences, split.sentences[1:], strict=False)]
    return [sentences[a:b] for a, b in zip(split.documents, split.documents[1:], strict=False)]


def test_documents_are_read_back_also_in_other_processes(folder):
    opened = TokenStore.open(folder, verify=True)
    for name in SPLITS:
        split = opened.split(name)
        assert read(split) == CONTENT[name]
        assert (split.tokens.dtype, split.sentences.dtype, split.documents.dtype) == (np.uint16, np.int64, np.int64)
    assert opened.manifest["splits"]["train"] == dict.fromkeys(COUNTS, 30) | {"documents": 3}
    opened = TokenStore.open(folder)
    split = opened.split("train")
    assert len(split.tokens) == 9 and opened.tokenizer.vocab_size
    for original in (opened, split):
        assert len(pickle.dumps(original)) < 3000
    assert read(pickle.loads(pickle.dumps(split))) == CONTENT["train"]
    assert pickle.loads(pickle.dumps(opened)).fingerprint == opened.fingerprint


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


def flip_a_bit(path, position=0):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("part", ["tokens", "sentences", "documents"])
@pytest.mark.parametrize("damage, error", [(cut, "bytes, not"), (flip_a_bit, "altered"), (os.remove, "cannot be read")])
def test_a_damaged_file_is_refused(folder, part, damage, error):
    damage(folder / f"heldout.{part}.bin")
    with pytest.raises(UserError, match=rf"heldout.{part}.bin.*{error}.*delete the folder and prepare again"):
        TokenStore.open(folder)


def test_the_last_byte_of_a_large_file_is_checked(folder, monkeypatch):
    """And its middle only if it is verified."""
    monkeypatch.setattr(store, "MIB", 4)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["fingerprint"]
    store.write_manifest(folder, manifest["spec"], TokenStore(folder, manifest).tokenizer, CONTENTS)
    flip_a_bit(folder / "train.tokens.bin", position=9)
    opened = TokenStore.open(folder)
    with pytest.raises(UserError, match="train.tokens.bin was altered"):
        TokenStore.open(folder, verify=True)
    vocabulary = dataclasses.replace(Vocabulary.of(opened.tokenizer), size=int(opened.split("train").tokens.max()))
    with pytest.raises(UserError, match="so the token store is damaged; python -m bertjax prepare --verify"):
        add_special_tokens([opened.split("train").tokens], None, vocabulary, {})
    flip_a_bit(folder / "train.tokens.bin", position=9)
    flip_a_bit(folder / "train.tokens.bin", position=-1)
    with pytest.raises(UserError, match="train.tokens.bin was altered"):
        TokenStore.open(folder)


def replaced_tokenizer(folder):
    other = TokenizerConfig(vocab_size=30, byte_fallback=False, kind="char")
    tokenizer.train(["other words"], other).save(folder / "tokenizer")


def rewrite(old, new):
    def change(folder):
        path = folder / "manifest.json"
        path.write_text(path.read_text().replace(old, new))

    return change


@pytest.mark.parametrize(
    "change, error",
    [
        (rewrite('"tokens": 30', '"tokens": 31'), "manifest.json was altered"),
        (rewrite("{", ""), "manifest.json cannot be read"),
        (rewrite('"format_version": 2', '"format_version": 1'), "has format 1, and .* reads format 2; d"),
        (rewrite('"format_version": 2', '"format_version": 3'), "has format 3, and .* reads format 2; d"),
        (replaced_tokenizer, "its tokenizer was replaced"),
        (lambda folder: os.remove(folder / "manifest.json"), "holds no token store; make one"),
    ],
)
def test_an_altered_store_is_refused(folder, change, error):
    change(folder)
    with pytest.raises(UserError, match=error):
        TokenStore.open(folder)


def test_an_id_outside_of_the_vocabulary_is_damage(folder):
    opened = TokenStore.open(folder)
    tokens = np.fromfile(folder / "train.tokens.bin", np.uint16)
    tokens[2] = 60_000
    tokens.tofile(folder / "train.tokens.bin")
    size = opened.manifest["vocab_size"]
    with pytest.raises(UserError, match=f"train.tokens.bin holds the id 60000, and the vocabulary has {size}"):
        opened.unigram_counts("train")
