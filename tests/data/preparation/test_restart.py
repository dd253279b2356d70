"""A preparation that was killed, or has damaged leftovers, makes the same store as an undisturbed one."""

import contextlib
import dataclasses
import os
import shutil
import signal
from pathlib import Path

import pytest

from bertjax.data import tokenizer
from bertjax.data.config import DataConfig, TokenizerConfig
from bertjax.data.preparation import pieces, shards, workers
from bertjax.data.preparation.local import Local
from bertjax.data.preparation.pieces import PartReader
from bertjax.data.preparation.prepare import prepare
from bertjax.data.store import TokenStore
from bertjax.runtime import locks
from bertjax.runtime.errors import UserError
from tests.data.preparation import corpora
from tests.data.preparation.corpora import content, in_a_process, write_corpus
from tests.data.preparation.test_parts import Unreliable
from tests.waiting import wait_until

SHARD_BYTES = 6000


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory):
    """A corpus of more than thirty shards, killed after the third, and the content of its undisturbed store."""
    folder = tmp_path_factory.mktemp("killed")
    write_corpus(folder / "corpus.txt", documents=500)
    config = DataConfig(
        corpus=f"{folder}/corpus.txt", store=f"{folder}/stores", tokenizer=TokenizerConfig(vocab_size=400), workers=1
    )
    _killed_after(3, config)
    return config, content(prepare(dataclasses.replace(config, store=f"{folder}/whole")).path)


@pytest.fixture
def killed(killed_once, tmp_path, monkeypatch):
    """A copy of that unfinished preparation; its configuration and the content of the undisturbed store."""
    config, expected = killed_once
    monkeypatch.setattr(shards, "SHARD_BYTES", SHARD_BYTES)
    shutil.copytree(config.store, tmp_path / "stores")
    return dataclasses.replace(config, store=str(tmp_path / "stores")), expected


def _killed_after(number, config):
    """Start or resume a preparation in a process, and kill it after so many more shards; return its errors."""
    stores = Path(config.store)
    before = len(_encoded(stores))
    process = in_a_process(config, before=f"corpora.pause_after({number})", shard_bytes=SHARD_BYTES)
    wait_until(lambda: len(_encoded(stores)) >= before + number, process)
    return _kill(process)


def _kill(process):
    """Kill a process and return its errors."""
    process.kill()
    errors = process.communicate()[1]
    assert process.returncode == -signal.SIGKILL, errors
    return errors


def _encoded(stores):
    return sorted(path for path in stores.glob("*.partial/tokens/*") if "." not in path.name)


def _interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("awaited", ["*.lock", "*.partial/store/train.tokens.bin"])
def test_a_killed_prepare_leaves_no_store_and_the_next_one_works(config, tmp_path, awaited):
    process = in_a_process(config, before="corpora.publish_nothing()")
    wait_until(lambda: list((tmp_path / "stores").glob(awaited)), process)
    _kill(process)
    for folder in (tmp_path / "stores").iterdir():
        with pytest.raises(UserError):
            TokenStore.open(folder)
    undisturbed = prepare(dataclasses.replace(config, store=config.store + "2"))
    assert content(prepare(config).path) == content(undisturbed.path)
    assert not list((tmp_path / "stores").glob("*.partial"))


@pytest.mark.parametrize(
    "harmed, starts", [("text", 1), ("tokens", 1), ("duplicates.bin", 1), ("store/tokenizer/tokenizer.model", 0)]
)
def test_damaged_leftovers_are_discarded(killed, tmp_path, harmed, starts, capfd):
    config, expected = killed
    [partial] = (tmp_path / "stores").glob("*.partial")
    harmed = sorted([partial / harmed, *(partial / harmed).glob("[0-9]*")])[-1]  # the last one of a folder of shards
    if harmed.parent.name == "text":  # as jobs that tidy up do with old files
        harmed.unlink()
    else:
        harmed.write_bytes(harmed.read_bytes()[:-1] + b"\xff")
    assert content(prepare(config).path) == expected
    assert capfd.readouterr().err.count("was written; check the disk; starting from scratch") == starts


@pytest.mark.slow
def test_a_killed_worker_is_an_error_and_the_next_call_resumes(killed, tmp_path):
    config, expected = killed
    pause = f"corpora.pause_after(2, {str(tmp_path / 'resume')!r})"  # until the worker is dead
    process = in_a_process(dataclasses.replace(config, workers=2), before=pause, shard_bytes=SHARD_BYTES)
    wait_until(lambda: len(_encoded(tmp_path / "stores")) >= 5, process)
    os.kill(_children(process)[0], signal.SIGKILL)
    (tmp_path / "resume").touch()
    errors = process.communicate()[1]
    assert "a process of the preparation ended with code -9" in errors and process.returncode
    assert content(prepare(config).path) == expected


def test_stop_signals_do_not_end_a_worker():
    assert sorted(workers.unordered(corpora.signaled, range(4), processes=2)) == [(task, task) for task in range(4)]


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(killed, tmp_path):
    config, _ = killed
    pause = "corpora.pause_after(2)"
    process = in_a_process(dataclasses.replace(config, workers=2), before=pause, shard_bytes=SHARD_BYTES)
    wait_until(lambda: len(_encoded(tmp_path / "stores")) >= 5, process)
    workers = _children(process)
    _kill(process)
    assert len(workers) == 2
    wait_until(lambda: not any(_runs(worker) for worker in workers))


def _children(process):
    return [int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def _runs(pid):
    """Whether a process runs; one that has ended may wait as a zombie until its new parent has noticed."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_what_was_read_serves_another_tokenizer(config, tmp_path, monkeypatch, capsys):
    """Also if the first one could not be trained, which is known only after all text was read."""
    other = dataclasses.replace(config, tokenizer=dataclasses.replace(config.tokenizer, vocab_size=500))
    expected = content(prepare(dataclasses.replace(other, store=config.store + "2")).path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tokenizer, "train", _interrupt)
        prepare(config)
    with pytest.raises(UserError, match="ask for at most"):
        prepare(dataclasses.replace(other, tokenizer=dataclasses.replace(config.tokenizer, vocab_size=9000)))
    capsys.readouterr()
    monkeypatch.setattr(PartReader, "__call__", lambda *_: pytest.fail("the corpus is read again"))
    assert content(prepare(other).path) == expected
    assert "which has read the same" in capsys.readouterr().err
    assert not list((tmp_path / "stores").glob("*.partial"))


@pytest.fixture
def pieces_of_files(config, tmp_path, monkeypatch):
    """A corpus whose five files are one piece each."""
    (tmp_path / "corpus").mkdir()
    for seed in range(5):
        write_corpus(tmp_path / "corpus" / f"{seed}.txt", documents=40, seed=seed)
    monkeypatch.setattr(pieces, "FEWEST_BYTES", 1)
    monkeypatch.setattr(pieces, "MOST_BYTES", 1)
    return dataclasses.replace(config, corpus=str(tmp_path / "corpus"))


@pytest.mark.parametrize(
    "last, complaint, resumed, skipped",
    [
        ("\u2581\n\nA bad one \udcff.\n", "9.txt:3 is not UTF-8", "5 of 6 pieces are read", 2),
        ("\u2581\n", "holds no token.*; remove it, or set data.on_bad_document=skip,", "5 of 6 shards are encoded", 1),
    ],
)
def test_what_was_done_before_a_bad_document_is_kept_if_it_is_skipped(
    pieces_of_files, tmp_path, capsys, last, complaint, resumed, skipped
):
    """The last of thousands of files may be the first bad one, and no token is known to be missing before the end."""
    config, skip = pieces_of_files, dataclasses.replace(pieces_of_files, on_bad_document="skip")
    (tmp_path / "corpus" / "9.txt").write_bytes(last.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=complaint):
        prepare(config)
    made = prepare(skip)
    printed = capsys.readouterr()
    assert resumed in printed.err and f"skipped: {skipped} document{'s' * (skipped > 1)}\n" in printed.out
    assert made.manifest["skipped"] == {"corpus": skipped} and not list((tmp_path / "stores").glob("*.partial"))
    assert content(made.path) == content(prepare(dataclasses.replace(skip, store=config.store + "2")).path)


def test_an_unfinished_preparation_is_left_to_its_runner(config, tmp_path, monkeypatch):
    """Runners keep other files, so one would remove what the other has read."""
    expected = content(prepare(dataclasses.replace(config, store=config.store + "2")).path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Local, "encode", _interrupt)
        prepare(config)
    other = dataclasses.replace(config, tokenizer=dataclasses.replace(config.tokenizer, vocab_size=300))
    prepare(other, Unreliable(temp=str(tmp_path / "temp")))
    monkeypatch.setattr(PartReader, "__call__", lambda *_: pytest.fail("the corpus is read again"))
    assert content(prepare(config).path) == expected


def test_an_unfinished_preparation_is_named_with_its_size_and_the_command_that_removes_it(config, tmp_path, capsys):
    stale = tmp_path / "stores" / "corpus-0123456789ab.partial"
    stale.mkdir(parents=True)
    (stale / "text").write_bytes(bytes(2_500_000))
    made = prepare(config)
    [line] = [line for line in capsys.readouterr().err.splitlines() if "unfinished" in line]
    assert f"{stale} is an unfinished preparation of 2.5 MB" in line and f"rm -r {stale} removes it" in line
    lock = stale.with_name("corpus-0123456789ab.lock")
    with locks.lock_or_fail(lock, ""):
        prepare(config)
    # In a folder that people share, the lock of another one may not even be opened.
    lock.unlink()
    lock.mkdir()
    # A store that is complete is opened where nothing can be written.
    own = made.path.with_name(made.path.name + ".lock")
    own.unlink()
    own.mkdir()
    prepare(config)
    assert "unfinished" not in capsys.readouterr().err
