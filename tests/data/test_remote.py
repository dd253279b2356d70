"""Stores under a URL: the real code on fsspec's file system in memory, in place of a bucket."""

import dataclasses
import itertools
import os

import fsspec
import pytest
import tenacity
from fsspec.implementations.memory import MemoryFileSystem

from bertjax import cli, storage
from bertjax.data.config import DataConfig, TokenizerConfig
from bertjax.data.preparation.prepare import open_or_prepare, prepare, store_path
from bertjax.data.store import TokenStore
from bertjax.errors import UserError
from tests import runs


class Bucket(MemoryFileSystem):
    """An object store that lasts as long as a test."""

    protocol = ("s3",)
    store: dict = {}
    pseudo_dirs = [""]


@pytest.fixture
def config(tmp_path, monkeypatch):
    fsspec.register_implementation("s3", Bucket, clobber=True)
    monkeypatch.setattr(Bucket, "store", {})
    monkeypatch.setattr(Bucket, "pseudo_dirs", [""])
    corpus = runs.write_corpus(tmp_path / "corpus.txt")

    return DataConfig(
        str(corpus),
        store="s3://bucket/stores",
        cache_dir=str(tmp_path / "cache"),
        tokenizer=TokenizerConfig(vocab_size=400),
    )


def test_a_store_is_built_in_the_cache_and_uploaded(config, tmp_path):
    made = prepare(config)
    assert made.path.parent == tmp_path / "cache" and (store_path(config) / "manifest.json").exists()
    elsewhere = dataclasses.replace(config, cache_dir=str(tmp_path / "other host"))
    copied = open_or_prepare(elsewhere, may_prepare=False)
    assert copied.path.parent == tmp_path / "other host" and copied.fingerprint == made.fingerprint
    assert {path.name for path in copied.path.rglob("*")} == {path.name for path in made.path.rglob("*")}
    TokenStore.open(copied.path, verify=True)
    written = (copied.path / "manifest.json").stat().st_mtime_ns
    open_or_prepare(elsewhere, may_prepare=False)
    assert (copied.path / "manifest.json").stat().st_mtime_ns == written


def test_a_damaged_remote_store_is_refused_and_leaves_no_copy(config, tmp_path):
    made = prepare(config)
    tokens = store_path(config) / "train.tokens.bin"
    content = bytearray(tokens.read_bytes())
    content[100] ^= 1
    tokens.write_bytes(content)
    with pytest.raises(UserError, match="train.tokens.bin was altered"):
        TokenStore.open(store_path(config), cache_dir=str(tmp_path / "other host"))
    assert not (tmp_path / "other host" / made.path.name).exists()


def test_a_copy_that_was_cut_short_is_made_again(config, tmp_path, monkeypatch):
    prepare(config)
    copy = tmp_path / "other host" / store_path(config).name

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rename", killed)
        TokenStore.open(store_path(config), cache_dir=str(copy.parent))
    assert not copy.exists() and any(copy.parent.iterdir())
    assert TokenStore.open(store_path(config), cache_dir=str(copy.parent)).path == copy


def test_a_store_that_does_not_exist(config):
    with pytest.raises(UserError, match="there is no token store s3://bucket/stores/corpus-.*make it first"):
        open_or_prepare(config, may_prepare=False)
    with pytest.raises(UserError, match="s3://bucket/none holds no token store"):
        TokenStore.open("s3://bucket/none", cache_dir=config.cache_dir)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            PermissionError("no\naccess"),
            2,
            "cannot look into s3://bucket/.*: no; check the address and your rights$",
        ),
        (
            RuntimeError("no route\nto host"),
            75,
            "^s3://bucket/stores/.*: no route after 8 attempts; run the same",
        ),
    ],
)
def test_an_error_of_the_file_system_is_one_line(config, monkeypatch, error, code, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(storage, "_WAIT", tenacity.wait_none())
    monkeypatch.setattr(Bucket, "exists", fail)
    with pytest.raises(UserError, match=message) as raised:
        open_or_prepare(config, may_prepare=False)
    assert cli.code_for(raised.value) == code


def test_a_copy_goes_on_after_failures_that_pass(config, tmp_path, monkeypatch):
    made = prepare(config)
    monkeypatch.setattr(storage, "_WAIT", tenacity.wait_none())
    opened, fail = Bucket._open, itertools.cycle([True, True, False])

    def flaky(self, path, mode="rb", **options):
        if mode == "rb" and next(fail):
            raise ConnectionResetError
        return opened(self, path, mode, **options)

    monkeypatch.setattr(Bucket, "_open", flaky)
    copied = TokenStore.open(store_path(config), cache_dir=str(tmp_path / "other host"))
    assert copied.fingerprint == made.fingerprint
