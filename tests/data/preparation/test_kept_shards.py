"""A corpus that grows: the store is that of a preparation from nothing, and only new text is encoded."""

import dataclasses
import shutil

import pytest

from bertjax import prepare as command
from bertjax.cli import exit_code_of
from bertjax.data.preparation import local, shards
from bertjax.data.preparation.local import Local
from bertjax.data.preparation.prepare import prepare
from bertjax.errors import UserError
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


@pytest.mark.parametrize("settings", [{}, CLEANING, {"share": 0.5}], ids=["all", "cleaned", "share"])
def test_only_new_text_is_encoded(config, tmp_path, encoded, settings, capsys):
    config = mixed(tmp_path, tokenizer=config.tokenizer, **settings)
    last = tmp_path / "web" / "2.jsonl.gz"  # of the last source
    later = last.rename(tmp_path / "later.gz")
    kept = Local(tmp_path / "kept")
    kept.kept.mkdir()
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


def test_a_damaged_shard_and_other_settings_are_encoded_anew(config, tmp_path, encoded):
    config = dataclasses.replace(config, workers=0)
    kept = Local(tmp_path / "kept")
    kept.kept.mkdir()
    expected = prepare(config, kept)
    config, count = grown(config, expected), len(encoded)
    expected = prepare(config, kept)
    assert len(encoded) == count
    [path, *_] = sorted(kept.kept.iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    shutil.rmtree(expected.path)
    assert content(prepare(config, kept).path) == content(expected.path) and len(encoded) == count + 1
    prepare(dataclasses.replace(config, splitter="line"), kept)
    assert len(encoded) == 2 * count + 1


def test_a_kept_document_without_a_token_still_stops(config, tmp_path, encoded):
    with open(tmp_path / "corpus.txt", "a") as file:
        file.write("\u2581\n")
    kept = Local(tmp_path / "kept")
    kept.kept.mkdir()
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
