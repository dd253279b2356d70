"""The lock of object stores: one holder at a time, and a holder that lost it stops."""

import contextlib
import datetime
import itertools
import queue
import threading
import time

import fsspec
import pytest
import tenacity
from etils import epath
from gcsfs.retry import HttpError

from bertjax import cli, storage
from bertjax.errors import Busy, Unavailable
from bertjax.training.run import lease as leases
from bertjax.training.run.lease import lease
from tests.data.test_remote import Bucket
from tests.waiting import wait_until

_SECONDS = 1.5  # a busy machine may stop a thread for a part of it


@pytest.fixture
def path(monkeypatch) -> epath.Path:
    """The lock of a workdir on an object store: fsspec's file system in memory takes its place."""
    fsspec.register_implementation("s3", Bucket, clobber=True)
    monkeypatch.setattr(Bucket, "store", {})
    monkeypatch.setattr(Bucket, "pseudo_dirs", [""])
    monkeypatch.setattr(storage, "_WAIT", tenacity.wait_none())
    return epath.Path("s3://bucket/run/.lock")


@pytest.fixture(params=["atomic", "not atomic"])
def any_path(request, path, monkeypatch) -> epath.Path:
    """The same on a store that creates a file only if there is none, and on one that takes no notice of that."""
    if request.param == "not atomic":
        monkeypatch.setattr(storage, "create", lambda path, content: storage.write_bytes(path, content) is None)
    return path


def marks(path: epath.Path) -> dict[str, str]:
    return {name: (path.parent / name).read_text() for name in storage.names_in(path.parent)}


def test_a_lock_has_one_holder_and_is_free_when_it_is_released(any_path, monkeypatch):
    with lease(any_path, _SECONDS) as held:
        held.verify()
        with pytest.raises(Busy, match="^workdir s3://bucket/run is in use by a live run; wait for it$"):
            with lease(any_path, _SECONDS):
                pass
        held.verify()
    assert marks(any_path) == {".lock-00001": "released"}
    slept = []
    monkeypatch.setattr(leases.time, "sleep", slept.append)
    with lease(any_path, _SECONDS) as held:
        assert sum(slept) < _SECONDS  # no other process was waited for
        assert list(marks(any_path)) == [".lock-00002"]


@pytest.mark.parametrize("attempt", range(3))
def test_of_processes_that_start_together_one_gets_the_lock(any_path, attempt, monkeypatch):
    monkeypatch.setattr(leases, "_SETTLING_SHARE", 0.5)  # four threads on one core take longer than four machines
    together, leave, outcomes = threading.Barrier(4), threading.Event(), queue.Queue()

    def claim():
        together.wait()
        try:
            with lease(any_path, _SECONDS):
                outcomes.put("held")
                leave.wait(60)
        except Busy:
            outcomes.put("busy")

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    decided = [outcomes.get(timeout=60) for _ in threads]
    leave.set()
    for thread in threads:
        thread.join()
    assert sorted(decided) == ["busy", "busy", "busy", "held"]


def test_a_holder_that_is_paused_loses_the_lock_and_leaves_that_of_the_next_alone(any_path, monkeypatch):
    paused, resumed = threading.Event(), threading.Event()
    write = storage.write_text

    def write_text(path, text):
        if text.startswith(first._owner) and not resumed.is_set():
            paused.set()
            resumed.wait(60)
        write(path, text)

    with lease(any_path, _SECONDS) as first:
        first.check()
        monkeypatch.setattr(storage, "write_text", write_text)
        assert paused.wait(60)
        with lease(any_path, _SECONDS) as second:
            resumed.set()
            with pytest.raises(Unavailable, match="another run has taken over s3://bucket/run") as raised:
                first.verify()
            assert cli.code_for(raised.value) == cli.STOPPED
            first.release()
            second.verify()
            assert marks(any_path)[".lock-00002"].startswith(second._owner)
        with pytest.raises(Unavailable):
            first.verify()  # also when the next one has finished


def test_a_claim_that_is_delayed_takes_nothing_from_the_holder(path, monkeypatch):
    create, holders = storage.create, contextlib.ExitStack()

    def delayed(mark, content):
        monkeypatch.setattr(storage, "create", create)
        held.append(holders.enter_context(lease(path, _SECONDS)))
        return create(mark, content)

    held = []
    monkeypatch.setattr(storage, "create", delayed)
    with holders:
        with pytest.raises(Busy):
            with lease(path, _SECONDS):
                pass
        held[0].verify()


def test_a_claim_that_is_delayed_is_noticed_by_the_holder_where_no_store_keeps_them_apart(path, monkeypatch):
    monkeypatch.setattr(storage, "create", lambda path, content: storage.write_bytes(path, content) is None)
    with lease(path, _SECONDS) as held:
        (path.parent / ".lock-00001").write_text("someone 0")
        with pytest.raises(Unavailable, match="has taken over"):
            held.verify()
    assert marks(path) == {".lock-00001": "someone 0"}


def test_a_mark_that_is_old_on_the_clock_of_the_store_is_not_waited_for(path):
    (path.parent / ".lock-00007").write_text("someone 17")
    [file] = Bucket.store.values()
    file.modified -= datetime.timedelta(seconds=100)
    started = time.monotonic()
    with lease(path, seconds=60.0) as held:
        assert time.monotonic() - started < 30.0
        held.verify()
        assert list(marks(path)) == [".lock-00008"]


def test_an_answer_that_was_lost_is_not_taken_for_another_process(path, monkeypatch):
    create, lost = Bucket.pipe_file, itertools.chain([True], itertools.repeat(False))

    def pipe_file(self, *arguments, **options):
        create(self, *arguments, **options)
        if next(lost):
            raise HttpError({"code": 503, "message": "Backend Error"})

    monkeypatch.setattr(Bucket, "pipe_file", pipe_file)
    with lease(path, _SECONDS) as held:
        held.verify()


def test_failures_that_pass_do_not_end_the_lease_and_longer_ones_do(path, monkeypatch, caplog):
    failures, write = [], storage.write_text

    def write_text(path, text):
        failures.append(1)
        raise HttpError({"code": 503, "message": "Backend Error"})

    with lease(path, _SECONDS) as held:
        monkeypatch.setattr(storage, "write_text", write_text)
        wait_until(lambda: len(failures) >= 2)
        held.check()
        monkeypatch.setattr(storage, "write_text", write)
        time.sleep(1.5 * _SECONDS)
        held.verify()
        monkeypatch.setattr(storage, "write_text", write_text)
        time.sleep(1.5 * _SECONDS)
        with pytest.raises(Unavailable, match="could not be renewed for .* resume from the newest checkpoint"):
            held.verify()
    assert "cannot be renewed" in caplog.text
