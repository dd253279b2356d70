"""A corpus that grows: the store is that of a preparation from nothing, and only new text is encoded."""

import dataclasses

import pytest

from bertjax.cli import prepare as command
from bertjax.data.preparation import local, shards
from bertjax.data.preparation.local import Local
from bertjax.data.preparation.prepare import prepare
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


def test_a_folder_that_cannot_be_used_is_named_and_costs_nothing(config, tmp_path, encoded):
    kept = Local(tmp_path / "kept")
    kept.kept.write_text("")
    with pytest.raises(RunFailed, match=f"cannot use --keep-shards={kept.kept}: Not a directory; name another folder"):
        prepare(config, kept)
    [partial] = (tmp_path / "stores").glob("*.partial")
    assert (partial / "reading.json").exists()


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
