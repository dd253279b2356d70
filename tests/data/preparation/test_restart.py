"""A preparation that was killed, or has damaged leftovers, makes the same store as an undisturbed one."""

import contextlib
import dataclasses
import errno
import json
import os
import random
import re
import signal
from pathlib import Path

import pytest

from bertjax.data.preparation import building, pieces, shards, workers
from bertjax.data.preparation import prepare as prepare_module
from bertjax.data.preparation.local import Local
from bertjax.data.preparation.pieces import PartReader
from bertjax.data.preparation.prepare import prepare
from bertjax.data.preparation.spec import spec_of
from bertjax.data.store import TokenStore
from bertjax.runtime import command_line, locks
from bertjax.runtime.errors import Busy, UserError
from tests.data.preparation import corpora
from tests.data.preparation.corpora import content, in_a_process, store_path, write_corpus
from tests.data.preparation.test_parts import Unreliable
from tests.waiting import wait_until


@pytest.mark.parametrize(
    "awaited", ["*.lock", "*.partial", "*.partial/text/000000", "*.partial/store/train.tokens.bin"]
)
def test_a_killed_prepare_leaves_no_store_and_the_next_one_works(config, tmp_path, awaited):
    write_corpus(tmp_path / "corpus.txt", documents=3000)
    process = in_a_process(config, before="corpora.publish_nothing()")
    wait_until(lambda: list((tmp_path / "stores").glob(awaited)), process)
    _kill(process)
    for folder in (tmp_path / "stores").iterdir():
        with pytest.raises(UserError):
            TokenStore.open(folder)
    undisturbed = prepare(dataclasses.replace(config, store=config.store + "2"))
    assert content(prepare(config).path) == content(undisturbed.path)
    assert not list((tmp_path / "stores").glob("*.partial"))


def _kill(process):
    """Kill a process and return its errors."""
    process.kill()
    errors = process.communicate()[1]
    assert process.returncode == -signal.SIGKILL, errors
    return errors


SHARD_BYTES = 20_000


@pytest.fixture
def many_shards(config, tmp_path, monkeypatch):
    """A corpus of more than thirty shards, and the content of its store."""
    monkeypatch.setattr(shards, "SHARD_BYTES", SHARD_BYTES)
    write_corpus(tmp_path / "corpus.txt", documents=1500)
    config = dataclasses.replace(config, workers=1)
    return config, content(prepare(dataclasses.replace(config, store=config.store + "-undisturbed")).path)


@pytest.mark.parametrize("workers", [2, 4])
def test_the_number_of_processes_has_no_effect_on_the_store(many_shards, workers):
    config, expected = many_shards
    assert content(prepare(dataclasses.replace(config, workers=workers)).path) == expected


@pytest.mark.parametrize("workers", [1, 2])
def test_shards_that_were_finished_before_a_kill_are_not_encoded_again(many_shards, tmp_path, workers, capsys):
    config, expected = many_shards
    config = dataclasses.replace(config, workers=workers)
    draw, finished = random.Random(workers), {}
    for _ in range(3):
        before, more = len(_encoded(tmp_path)), draw.randint(1, 6)
        pause = f"corpora.pause_after({more + 1})"  # three starts finish less than all shards
        process = in_a_process(config, before=pause, shard_bytes=SHARD_BYTES)
        wait_until(lambda: len(_encoded(tmp_path)) >= before + more, process)  # noqa: B023 - called in this round
        errors = _kill(process)
        if finished:
            assert int(re.search(r"(\d+) of \d+ shards are encoded", errors)[1]) >= len(finished)
        assert {path: path.stat().st_mtime_ns for path in finished} == finished
        finished = {path: path.stat().st_mtime_ns for path in _encoded(tmp_path)}
    capsys.readouterr()
    assert content(prepare(config).path) == expected
    assert int(re.search(r"(\d+) of \d+ shards are encoded", capsys.readouterr().err)[1]) >= len(finished)
    assert not list((tmp_path / "stores").glob("*.partial"))


def _encoded(tmp_path):
    return sorted(path for path in (tmp_path / "stores").glob("*.partial/tokens/*") if "." not in path.name)


@pytest.mark.parametrize(
    "harmed, starts", [("text", 1), ("tokens", 1), ("duplicates.bin", 1), ("store/tokenizer/tokenizer.model", 0)]
)
def test_damaged_leftovers_are_discarded(many_shards, tmp_path, harmed, starts, capfd):
    config, expected = many_shards
    process = in_a_process(config, before="corpora.pause_after(3)", shard_bytes=SHARD_BYTES)
    wait_until(lambda: len(_encoded(tmp_path)) >= 3, process)
    _kill(process)
    [partial] = (tmp_path / "stores").glob("*.partial")
    harmed = sorted([partial / harmed, *(partial / harmed).glob("[0-9]*")])[-1]  # the last one of a folder of shards
    if harmed.parent.name == "text":  # as jobs that tidy up do with old files
        harmed.unlink()
    else:
        harmed.write_bytes(harmed.read_bytes()[:-1] + b"\xff")
    capfd.readouterr()
    assert content(prepare(config).path) == expected
    assert capfd.readouterr().err.count("was written; check the disk; starting from scratch") == starts


@pytest.mark.parametrize("origin", ["another preparation", "an older version"])
def test_leftovers_of_another_preparation_are_discarded(many_shards, origin, capsys):
    config, expected = many_shards
    spec = spec_of(config) if origin == "an older version" else {"format_version": 0}
    partial = store_path(config).with_name(store_path(config).name + ".partial")
    partial.mkdir(parents=True)
    (partial / "reading.json").write_text(json.dumps({"spec": spec, "reading": {}}))
    assert content(prepare(config).path) == expected
    assert capsys.readouterr().err.count("starting from scratch") == 1


def test_a_killed_worker_is_an_error_and_the_next_call_resumes(many_shards, tmp_path):
    config, expected = many_shards
    pause = f"corpora.pause_after(2, {str(tmp_path / 'resume')!r})"  # until the worker is dead
    process = in_a_process(dataclasses.replace(config, workers=2), before=pause, shard_bytes=SHARD_BYTES)
    wait_until(lambda: len(_encoded(tmp_path)) >= 2, process)
    os.kill(_children(process)[0], signal.SIGKILL)
    (tmp_path / "resume").touch()
    errors = process.communicate()[1]
    assert "a process of the preparation ended with code -9" in errors and process.returncode
    assert _encoded(tmp_path)
    assert content(prepare(config).path) == expected


def test_stop_signals_do_not_end_a_worker():
    assert sorted(workers.unordered(corpora.signaled, range(4), processes=2)) == [(task, task) for task in range(4)]


def test_workers_end_with_the_process_that_started_them(many_shards, tmp_path):
    config, _ = many_shards
    pause = "corpora.pause_after(2)"
    process = in_a_process(dataclasses.replace(config, workers=2), before=pause, shard_bytes=SHARD_BYTES)
    wait_until(lambda: len(_encoded(tmp_path)) >= 2, process)
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


def test_what_is_encoded_before_a_bad_document_is_kept_if_it_is_skipped(many_shards, tmp_path, capsys):
    """No document is known to hold no token before it is encoded, perhaps after hours."""
    config, _ = many_shards
    with open(tmp_path / "corpus.txt", "a") as file:
        file.write("\u2581\n")
    with pytest.raises(UserError, match="holds no token.*; remove it, or set data.on_bad_document=skip, which"):
        prepare(config)
    encoded = {path: path.stat().st_mtime_ns for path in _encoded(tmp_path)}
    skip = dataclasses.replace(config, on_bad_document="skip")
    capsys.readouterr()
    made = prepare(skip)
    assert len(encoded) > 20 and f"{len(encoded)} of {len(encoded) + 1} shards are encoded" in capsys.readouterr().err
    assert content(made.path) == content(prepare(dataclasses.replace(skip, store=config.store + "2")).path)
    assert made.manifest["skipped"] == {"corpus": 1} and not list((tmp_path / "stores").glob("*.partial"))


@pytest.mark.parametrize("failure, code", [(OSError(errno.ENOSPC, "No space"), 1), (OSError(errno.EIO, "I/O"), 75)])
def test_a_disk_that_fails_keeps_what_is_encoded(many_shards, tmp_path, monkeypatch, failure, code, capsys):
    config, expected = many_shards
    written = shards.write_tokens

    def fail(path, shard):
        if path.name == "000009":
            raise failure
        written(path, shard)

    with monkeypatch.context() as patch:
        patch.setattr(shards, "write_tokens", fail)
        assert command_line.exit_code_of(lambda: prepare(config)) == code
    assert f"error: cannot write the token store {store_path(config)}: {failure.strerror}; " in capsys.readouterr().err
    assert len(_encoded(tmp_path)) == 9
    assert content(prepare(config).path) == expected
    assert "9 of " in capsys.readouterr().err


def test_a_process_that_fails_removes_its_leftovers_before_the_next_one_starts(config, tmp_path, monkeypatch):
    """Removed after the lock is released, they would be those of the next process."""
    locked = []

    def build(config, spec, partial, runner):
        partial.mkdir()
        raise UserError("the same again")

    def remove(path, **_):
        with pytest.raises(Busy), locks.lock_or_fail(path.with_suffix(".lock"), "it holds the lock"):
            pass
        locked.append(path)

    monkeypatch.setattr(building, "build", build)
    monkeypatch.setattr(prepare_module.shutil, "rmtree", remove)
    with pytest.raises(UserError, match="the same again"):
        prepare(config)
    assert [path.suffix for path in locked] == [".partial"]


def test_what_was_read_serves_another_tokenizer(config, tmp_path, monkeypatch, capsys):
    """Also if the first one could not be trained, which is known only after all text was read."""
    other = dataclasses.replace(config, tokenizer=dataclasses.replace(config.tokenizer, vocab_size=500), workers=1)
    expected = content(prepare(dataclasses.replace(other, store=config.store + "2")).path)
    pause = "from bertjax.data import tokenizer\ntokenizer.train = lambda *_: corpora.wait()"
    process = in_a_process(config, before=pause)
    wait_until(lambda: list((tmp_path / "stores").glob("*.partial/reading.json")), process)
    _kill(process)
    with pytest.raises(UserError, match="ask for at most"):
        prepare(dataclasses.replace(other, tokenizer=dataclasses.replace(config.tokenizer, vocab_size=9000)))
    capsys.readouterr()
    monkeypatch.setattr(PartReader, "__call__", lambda *_: pytest.fail("the corpus is read again"))
    assert content(prepare(other).path) == content(prepare(other).path) == expected
    assert "which has read the same" in capsys.readouterr().err
    assert not list((tmp_path / "stores").glob("*.partial"))


def test_pieces_that_were_read_before_a_kill_are_not_read_again(config, tmp_path, monkeypatch, capsys):
    (tmp_path / "corpus").mkdir()
    for seed in range(6):
        write_corpus(tmp_path / "corpus" / f"{seed}.txt", documents=40, seed=seed)
    config = dataclasses.replace(config, corpus=str(tmp_path / "corpus"), workers=2)
    whole = content(prepare(dataclasses.replace(config, store=config.store + "2")).path)
    small = "from bertjax.data.preparation import pieces\npieces.FEWEST_BYTES = pieces.MOST_BYTES = 1\n"
    process = in_a_process(config, before=f"{small}corpora.pause_after(3)")
    seals = lambda: sorted((tmp_path / "stores").glob("*.partial/reading/*/part.json"))  # noqa: E731
    wait_until(lambda: len(seals()) >= 3, process)
    _kill(process)
    before = len(seals())
    capsys.readouterr()
    monkeypatch.setattr(pieces, "FEWEST_BYTES", 1)
    monkeypatch.setattr(pieces, "MOST_BYTES", 1)
    assert content(prepare(config).path) == whole
    assert f"{before} of 6 pieces are read" in capsys.readouterr().err


@pytest.fixture
def pieces_of_files(config, tmp_path, monkeypatch):
    """A corpus whose files are one piece each."""
    (tmp_path / "corpus").mkdir()
    for seed in range(4):
        write_corpus(tmp_path / "corpus" / f"{seed}.txt", documents=40, seed=seed)
    monkeypatch.setattr(pieces, "FEWEST_BYTES", 1)
    monkeypatch.setattr(pieces, "MOST_BYTES", 1)
    return dataclasses.replace(config, corpus=str(tmp_path / "corpus"), workers=0)


def test_what_is_read_before_a_bad_document_is_kept_if_it_is_skipped(pieces_of_files, tmp_path, capsys):
    """The last of thousands of files may be the first bad one."""
    config, skip = pieces_of_files, dataclasses.replace(pieces_of_files, on_bad_document="skip")
    (tmp_path / "corpus" / "9.txt").write_bytes(b"A good one.\n\nA bad one \xff.\n")
    with pytest.raises(UserError, match="9.txt:3 is not UTF-8"):
        prepare(config)
    assert "keeps what was read; data.on_bad_document=skip continues" in capsys.readouterr().err
    made = prepare(skip)
    assert "4 of 5 pieces are read" in capsys.readouterr().err
    assert made.manifest["skipped"] == {"corpus": 1} and not list((tmp_path / "stores").glob("*.partial"))
    assert content(made.path) == content(prepare(dataclasses.replace(skip, store=config.store + "2")).path)


def _interrupt(*_):
    raise KeyboardInterrupt


def test_what_a_killed_process_had_begun_to_read_is_removed(config, tmp_path, monkeypatch):
    """Otherwise each of a hundred preemptions would leave the text of a piece for each worker."""
    pause = "from bertjax.data.preparation import reading\nreading.write = lambda *_: corpora.wait()"
    process = in_a_process(config, before=pause)
    drafts = lambda: list((tmp_path / "stores").glob("*.partial/reading/.*/piece"))  # noqa: E731
    wait_until(drafts, process)
    _kill(process)
    assert drafts()
    monkeypatch.setattr(Local, "encode", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare(config)
    assert not drafts() and list((tmp_path / "stores").glob("*.partial/reading/*"))


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
    prepare(config)
    [line] = [line for line in capsys.readouterr().err.splitlines() if "unfinished" in line]
    assert line == (
        f"{stale} is an unfinished preparation of 2.5 MB; its command continues it, and rm -r {stale} removes it"
    )
    lock = stale.with_name("corpus-0123456789ab.lock")
    with locks.lock_or_fail(lock, ""):
        prepare(config)
    assert "unfinished" not in capsys.readouterr().err
    # In a folder that people share, the lock of another one may not even be opened.
    lock.unlink()
    lock.mkdir()
    prepare(config)
    made = prepare(dataclasses.replace(config, heldout_share=0.1))
    assert "unfinished" not in capsys.readouterr().err
    # A store that is complete is opened where nothing can be written.
    lock = made.path.with_name(made.path.name + ".lock")
    lock.unlink()
    lock.mkdir()
    prepare(dataclasses.replace(config, heldout_share=0.1))
