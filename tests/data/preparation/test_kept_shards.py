"""A corpus that grows: the store is that of a preparation from nothing, and only new text is encoded."""

import dataclasses
import hashlib
import json
import shutil
from importlib import metadata
from itertools import islice
from pathlib import Path

import pytest

from bertjax.cli import prepare as command
from bertjax.data import tokenizer
from bertjax.data.config import SPLITTERS
from bertjax.data.preparation import local, shards, steps
from bertjax.data.preparation.local import Local
from bertjax.data.preparation.prepare import prepare
from bertjax.data.preparation.steps import Key, ShardDocument
from bertjax.data.sources import documents
from bertjax.runtime.command_line import exit_code_of
from bertjax.runtime.errors import RunFailed, UserError
from tests.data.preparation.corpora import content
from tests.data.preparation.test_parts import CLEANING, mixed


@pytest.fixture
def encoded(monkeypatch):
    """The documents of each call that encodes."""
    calls = []

    def counted(documents, *arguments):
        calls.append(len(documents))
        return encode_shard(documents, *arguments)

    encode_shard = local.encode_shard
    monkeypatch.setattr(local, "encode_shard", counted)
    monkeypatch.setattr(shards, "SHARD_BYTES", 4000)
    return calls


def grown(config, store):
    """The configuration for more files, which has the tokenizer of a store."""
    tokenizer = dataclasses.replace(config.tokenizer, model=str(store.path / "tokenizer"))
    return dataclasses.replace(config, tokenizer=tokenizer)


@pytest.fixture
def kept(tmp_path):
    (tmp_path / "kept").mkdir()
    return Local(tmp_path / "kept")


def test_only_new_text_is_encoded(config, tmp_path, encoded, kept, capsys):
    config = mixed(tmp_path, tokenizer=config.tokenizer, share=0.5, **CLEANING)
    last = tmp_path / "web" / "2.jsonl.gz"
    later = last.rename(tmp_path / "later.gz")
    first = prepare(config, kept)
    before = len(encoded)
    later.rename(last)
    config = grown(config, first)
    capsys.readouterr()
    made = prepare(config, kept)
    again = len(encoded) - before
    expected = prepare(dataclasses.replace(config, store=f"{config.store}-2"))
    assert content(made.path) == content(expected.path)
    whole = len(encoded) - before - again
    assert 0 < again < 0.6 * whole
    message = f"kept shards: {whole - again} of {whole} were in {kept.kept}, and {again} were encoded\n"
    assert message in capsys.readouterr().out


def test_the_version_names_the_way_text_is_encoded():
    """Another digest means that kept shards of before are no longer what encoding gives: raise KEPT_VERSION with it."""
    folders = Path(__file__).parent / "tokenizers"
    texts = [document.text.encode() for document in islice(documents("embedded:ko", "text"), 20)]
    texts += [document.text.encode() for document in islice(documents("embedded:en", "text"), 20)]
    shard = [ShardDocument(Key(0, 0, number), str(number), number % 2, text) for number, text in enumerate(texts)]
    digest = hashlib.sha256()
    for folder in sorted(folders.iterdir()):
        for splitter in SPLITTERS:
            encoded = steps.encode_shard(shard, ("train", "heldout"), tokenizer.load(folder), splitter)
            digest.update(json.dumps([encoded.counts, encoded.longest, encoded.skipped]).encode())
            for arrays in encoded.arrays.values():
                digest.update(b"".join(array.tobytes() for array in arrays))
    assert (local.KEPT_VERSION, digest.hexdigest()[:16]) == (3, "6c2547c6739c3104")


def test_a_folder_that_cannot_be_used_is_named_and_costs_nothing(config, tmp_path, encoded):
    kept = Local(tmp_path / "kept")
    kept.kept.write_text("")
    with pytest.raises(RunFailed, match=f"cannot use --keep-shards={kept.kept}: Not a directory; name another folder"):
        prepare(config, kept)
    [partial] = (tmp_path / "stores").glob("*.partial")
    assert (partial / "reading.json").exists()


def test_a_damaged_shard_and_other_settings_are_encoded_anew(config, encoded, kept, monkeypatch, capsys):
    made = prepare(config, kept)
    config, count = grown(config, made), len(encoded)
    expected = prepare(config, kept)
    assert len(encoded) == count
    [path, *_] = sorted(kept.kept.iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    shutil.rmtree(expected.path)
    assert content(prepare(config, kept).path) == content(expected.path) and len(encoded) == count + 1
    prepare(dataclasses.replace(config, splitter="line"), kept)
    assert len(encoded) == 2 * count + 1
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0" if name == "tokenizers" else version(name))
    shutil.rmtree(expected.path)
    prepare(config, kept)
    assert len(encoded) == 3 * count + 1, "a library of another version"
    capsys.readouterr()
    prepare(config, kept)
    assert "is there already, so no text is encoded or kept\n" in capsys.readouterr().out


def test_a_kept_document_without_a_token_still_stops(config, tmp_path, encoded, kept):
    with open(tmp_path / "corpus.txt", "a") as file:
        file.write("\u2581\n")
    first = prepare(dataclasses.replace(config, on_bad_document="skip"), kept)
    with pytest.raises(UserError, match="holds no token"):
        prepare(grown(config, first), kept)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--keep-shards=file/kept"], "cannot write --keep-shards=file/kept: Not a directory; name another folder"),
        (["--keep-shards=s3://bucket/kept"], "--keep-shards=s3://bucket/kept is a URL"),
        (["--keep-shards=kept", "--runner=FnApiRunner"], "--keep-shards=kept has no effect with --runner=FnApiRunner"),
    ],
)
def test_bad_input_is_one_line(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert exit_code_of(lambda: command.main(["--config=tiny", *flags])) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}") and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
