"""The lock of object stores: one holder at a time, and a holder that lost it stops."""

import threading

import fsspec
import pytest
import tenacity
from etils import epath
from gcsfs.retry import HttpError

from bertjax.runtime import command_line, storage
from bertjax.runtime.errors import Busy, Unavailable
from bertjax.training.run import workdir as workdirs
from bertjax.training.run.workdir import Lease, Workdir
from tests.data.test_remote import Bucket
from tests.waiting import Clock


@pytest.fixture
def workdir(monkeypatch) -> Workdir:
    """A workdir on an object store: fsspec's file system in memory takes its place."""
    fsspec.register_implementation("s3", Bucket, clobber=True)
    monkeypatch.setattr(Bucket, "store", {})
    monkeypatch.setattr(Bucket, "pseudo_dirs", [""])
    monkeypatch.setattr(storage, "_WAIT", tenacity.wait_none())
    return Workdir.at("s3://bucket/run")


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(workdirs, "time", clock)
    return clock


def alive(lease: Lease, clock: Clock):
    """Let time pass, in which the log writer of a holder is called."""

    def pass_time(seconds: float) -> None:
        clock.now += seconds
        lease.write()

    return pass_time


def test_a_lock_has_one_holder_and_is_free_when_it_is_released(workdir, clock):
    with workdir.locked() as held:
        clock.while_asleep = alive(held, clock)
        with pytest.raises(Busy, match="^workdir s3://bucket/run is in use by a live run; wait for it$"):
            Lease(workdir).claim()
        held.verify()
    clock.slept.clear()
    clock.while_asleep = lambda seconds: None
    with workdir.locked() as held:
        assert sum(clock.slept) < 10, "no other process was waited for"
        held.verify()


def test_of_processes_that_start_together_one_gets_the_lock(workdir, clock):
    """All of them find no sign of life, and have written their ids when they look again."""
    together, held, busy = threading.Barrier(4), [], []
    clock.while_asleep = lambda seconds: together.wait()

    def claim():
        lease = Lease(workdir)
        try:
            lease.claim()
            held.append(lease)
        except Busy:
            busy.append(lease)

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(held), len(busy)) == (1, 3)
    held[0].verify()


def test_a_holder_that_is_paused_loses_the_lock_and_leaves_that_of_the_next_alone(workdir, clock):
    (first := Lease(workdir)).claim()
    (second := Lease(workdir)).claim()  # no sign of life while it waits
    first.check()  # it has not looked
    clock.now += 20
    for action in (first.verify, first.check, lambda: first.write()):
        with pytest.raises(Unavailable, match="another run has taken over s3://bucket/run") as raised:
            action()
    assert command_line.code_for(raised.value) == command_line.STOPPED
    first.release()
    second.verify()
    clock.while_asleep = alive(second, clock)
    with pytest.raises(Busy):
        Lease(workdir).claim()
    second.release()
    with pytest.raises(Unavailable):
        first.verify()  # also when the next one has finished


def test_a_claim_that_is_delayed_is_noticed_by_the_holder(workdir):
    """No store keeps apart who looked before the holder wrote its id, and writes after it."""
    with workdir.locked() as held:
        workdir.lock.write_text("someone")
        with pytest.raises(Unavailable, match="has taken over"):
            held.verify()
    assert workdir.lock.read_text() == "someone"


def test_a_process_that_died_long_ago_is_not_waited_for(workdir, clock, monkeypatch):
    Lease(workdir).claim()
    age = {"alive": 0.0, "now": workdirs._SILENT_SECONDS}
    monkeypatch.setattr(storage, "modified", lambda path: age[path.name.rpartition("-")[2]])
    clock.slept.clear()
    Lease(workdir).claim()
    assert sum(clock.slept) < 10


def test_failures_that_pass_do_not_end_the_lease_and_longer_ones_do(workdir, monkeypatch):
    failures, read = iter([True, True, False]), storage.read_now

    def read_now(path: epath.Path) -> bytes:
        if next(failures, True):
            raise HttpError({"code": 503, "message": "Backend Error"})
        return read(path)

    with workdir.locked() as held:
        monkeypatch.setattr(storage, "read_now", read_now)
        held.verify()
        with pytest.raises(Unavailable, match="run the same command again later"):
            held.verify()
