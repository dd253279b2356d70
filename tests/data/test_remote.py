"""Stores under a URL: the real code on fsspec's file system in memory, in place of a bucket."""

import dataclasses
import functools
import io
import os
import threading

import fsspec
import pytest
import tenacity
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from bertjax.data import remote, sources
from bertjax.data.config import DataConfig, TokenizerConfig
from bertjax.data.formats.runs import FullSentences
from bertjax.data.plan import Spec, open_or_make
from bertjax.data.preparation.prepare import prepare
from bertjax.data.preparation.spec import spec_of
from bertjax.data.store import TokenStore
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError
from bertjax.training import resolve
from bertjax.training.parallel import processes
from tests import runs
from tests.data.preparation.corpora import store_path


class Bucket(MemoryFileSystem):
    """An object store that lasts as long as a test.

    As in a real one, every reader has a position of its own, an object appears when all of it is written, and a call
    sees nothing of another that is under way in another thread.
    """

    protocol = ("s3",)
    store: dict = {}
    pseudo_dirs = [""]
    _lock = threading.RLock()

    def _open(self, path, mode="rb", **options):
        with self._lock:
            self._intrans = mode == "wb" and "data" not in options  # or it would be there before its content
            try:
                file = super()._open(path, mode, **options)
                if self._intrans:
                    file.close = functools.partial(_commit, file)
            finally:
                self._intrans = False
            return io.BytesIO(file.getvalue()) if mode == "rb" else file

    def ls(self, *arguments, **options):
        with self._lock:
            return super().ls(*arguments, **options)

    def _rm(self, path):
        with self._lock:
            super()._rm(path)


def _commit(file: MemoryFile) -> None:
    del file.close  # the garbage collector closes files again
    file.commit()


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


def test_a_store_that_does_not_exist(config):
    with pytest.raises(UserError, match="s3://bucket/none holds no token store"):
        TokenStore.open("s3://bucket/none", cache_dir=config.cache_dir)


def test_a_copy_is_made_in_pieces_and_a_piece_that_fails_is_read_again(config, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "_WAIT", tenacity.wait_none())
    monkeypatch.setattr(remote, "PIECE_BYTES", 1000)
    made, opened, failures = (
        prepare(config),
        Bucket._open,
        iter([ConnectionResetError(), TimeoutError(), OSError("503")]),
    )

    def unsteady(self, path, *args, **kwargs):
        if path.endswith("train.tokens.bin"):
            for error in failures:
                raise error
        return opened(self, path, *args, **kwargs)

    monkeypatch.setattr(Bucket, "_open", unsteady)
    copy = TokenStore.open(store_path(config), cache_dir=str(tmp_path / "other host"))
    assert (made.path / "train.tokens.bin").stat().st_size > 3000 and next(failures, None) is None
    TokenStore.open(copy.path, verify=True)


def test_a_copy_that_rots_is_found_after_a_week_and_made_again(config, capsys):
    made = prepare(config)
    tokens, stamp = made.path / "train.tokens.bin", made.path / remote.VERIFIED
    content = tokens.read_bytes()
    rotten = bytearray(content)
    rotten[len(content) // 2] ^= 1
    tokens.write_bytes(rotten)
    os.utime(stamp, (0, 0))
    again = TokenStore.open(store_path(config), cache_dir=config.cache_dir)
    assert again.path == made.path and tokens.read_bytes() == content
    assert "the copy is made again: token store" in capsys.readouterr().err


def test_a_plan_that_cannot_be_uploaded_is_used_all_the_same(config, tmp_path, monkeypatch, caplog):
    store = prepare(config)
    opened = Bucket._open

    def read_only(self, path, mode="rb", **kwargs):
        if "w" in mode:
            raise PermissionError("Forbidden")
        return opened(self, path, mode, **kwargs)

    monkeypatch.setattr(Bucket, "_open", read_only)
    assert open_or_make(store, Spec("train", FullSentences(), 32, seed=0)).counts.rows
    assert "Forbidden" in caplog.text and "the next host makes the plan again" in caplog.text


def test_process_0_prepares_and_the_others_wait_and_copy(config, tmp_path, monkeypatch):
    """This is another process. Process 0, on another host, works while this one waits in `on_writer`."""
    spec, parts, waited = spec_of(config), sources.parts, []

    def wait(action, purpose):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sources, "parts", parts)
            waited.append((purpose, prepare(config).fingerprint))

    monkeypatch.setattr(processes, "is_writer", lambda: False)
    monkeypatch.setattr(processes, "from_writer", lambda action, purpose: spec)
    monkeypatch.setattr(processes, "on_writer", wait)
    monkeypatch.setattr(sources, "parts", None)
    opened = resolve.open_store(dataclasses.replace(config, cache_dir=str(tmp_path / "here")), None)
    assert waited == [("prepare", opened.fingerprint)] and opened.path.parent == tmp_path / "here"
    assert opened.origin.startswith("s3://bucket/stores/corpus-")
