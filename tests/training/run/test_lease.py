"""The lock of object stores: one holder at a time, and a holder that lost it stops."""

import contextlib
import queue
import threading

import fsspec
import pytest
import tenacity
from etils import epath
from gcsfs.retry import HttpError

from bertjax.runtime import command_line, storage
from bertjax.runtime.errors import Busy, Unavailable
from bertjax.training.run import lease as leases
from bertjax.training.run.lease import lease
from tests.data.test_remote import Bucket
from tests.waiting import LIMIT_SECONDS, Clock, wait_until

# Holders wait as long as this for their threads. These renew a lock 50 times a second, by a clock that no test sets.
_SECONDS, _RENEWALS = LIMIT_SECONDS, 50 * LIMIT_SECONDS
_WITHOUT_RENEWALS = 1e6 * LIMIT_SECONDS


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
    create, lock = storage.create, threading.Lock()

    def create_atomically(path, content):
        with lock:  # which fsspec's file system in memory does not do
            return create(path, content)

    if request.param == "not atomic":
        monkeypatch.setattr(storage, "create", lambda path, content: storage.write_bytes(path, content) is None)
    else:
        monkeypatch.setattr(storage, "create", create_atomically)
    return path


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    """The clock of all locks. It stands still: no holder is late because its thread is."""
    clock = Clock()
    monkeypatch.setattr(leases, "time", clock)
    monkeypatch.setattr(leases, "_RENEWALS", _RENEWALS)
    return clock


def marks(path: epath.Path) -> dict[str, str]:
    return {name: (path.parent / name).read_text() for name in storage.names_in(path.parent)}


def wait_for_renewal(path: epath.Path) -> None:
    before = marks(path)
    wait_until(lambda: marks(path) != before)


def test_a_lock_has_one_holder_and_is_free_when_it_is_released(any_path, clock):
    with lease(any_path, _SECONDS) as held:
        held.verify()
        clock.while_asleep = lambda seconds: wait_for_renewal(any_path)
        with pytest.raises(Busy, match="^workdir s3://bucket/run is in use by a live run; wait for it$"):
            with lease(any_path, _SECONDS):
                pass
        held.verify()
    assert marks(any_path) == {".lock-00001": "released"}
    clock.slept.clear()
    clock.while_asleep = lambda seconds: None
    with lease(any_path, _SECONDS) as held:
        assert sum(clock.slept) < _SECONDS  # no other process was waited for
        assert list(marks(any_path)) == [".lock-00002"]


@pytest.mark.parametrize("attempt", range(3))
def test_of_processes_that_start_together_one_gets_the_lock(any_path, attempt, clock, monkeypatch):
    """All of them find no mark before one creates it, and have created theirs when they have waited for the others."""
    together, leave, outcomes = threading.Barrier(4), threading.Event(), queue.Queue()
    list_names, has_looked = storage.list_names, threading.local()

    def list_names_together(folder):
        names = list_names(folder)
        if threading.current_thread() in threads and not hasattr(has_looked, "done"):
            has_looked.done = True
            together.wait(LIMIT_SECONDS)
        return names

    def claim():
        try:
            with lease(any_path, _SECONDS):
                outcomes.put("held")
                leave.wait(LIMIT_SECONDS)
        except Busy:
            outcomes.put("busy")

    monkeypatch.setattr(storage, "list_names", list_names_together)
    clock.while_asleep = lambda seconds: together.wait(LIMIT_SECONDS)
    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    decided = [outcomes.get(timeout=LIMIT_SECONDS) for _ in threads]
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
            resumed.wait(LIMIT_SECONDS)
        write(path, text)

    with lease(any_path, _SECONDS) as first:
        first.check()
        monkeypatch.setattr(storage, "write_text", write_text)
        assert paused.wait(LIMIT_SECONDS)
        with lease(any_path, _SECONDS) as second:
            resumed.set()
            with pytest.raises(Unavailable, match="another run has taken over s3://bucket/run") as raised:
                first.verify()
            assert command_line.code_for(raised.value) == command_line.STOPPED
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
    with lease(path, _WITHOUT_RENEWALS) as held:  # a renewal at this moment would hide the other claim until the next
        (path.parent / ".lock-00001").write_text("someone 0")
        with pytest.raises(Unavailable, match="has taken over"):
            held.verify()
    assert marks(path) == {".lock-00001": "someone 0"}


def test_failures_that_pass_do_not_end_the_lease_and_longer_ones_do(path, clock, monkeypatch, caplog):
    failures, write = [], storage.write_text

    def write_text(path, text):
        failures.append(1)
        raise HttpError({"code": 503, "message": "Backend Error"})

    def fail_from_now_on() -> None:
        failures.clear()
        monkeypatch.setattr(storage, "write_text", write_text)
        wait_until(lambda: len(failures) >= 2)  # no renewal from before is under way

    with lease(path, _SECONDS) as held:
        for _ in range(2):
            fail_from_now_on()
            clock.now += 0.9 * _SECONDS
            held.check()
            monkeypatch.setattr(storage, "write_text", write)
            wait_until(lambda: held._renewed == clock.now)
            held.verify()
        fail_from_now_on()
        clock.now += 1.1 * _SECONDS
        with pytest.raises(Unavailable, match="could not be renewed for .* resume from the newest checkpoint"):
            held.verify()
    assert "cannot be renewed" in caplog.text
