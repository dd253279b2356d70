"""The writer of the logs: nothing that is only a log ends a run or delays a step."""

import threading

import pytest
from gcsfs.retry import HttpError

from bertjax.runtime import storage
from bertjax.runtime.errors import Unavailable
from bertjax.training.run import writer as writers
from bertjax.training.run.workdir import read_jsonl
from bertjax.training.run.writer import Journal, LogWriter
from tests.training.run.test_journal import bucket  # noqa: F401, a fixture
from tests.waiting import LIMIT_SECONDS


@pytest.fixture
def store(monkeypatch, bucket):  # noqa: F811
    """A store whose writes hang or fail as a test decides; what waits for one that hangs waits for ever."""

    class Store:
        path = bucket / "metrics.jsonl"
        is_up = threading.Event()
        called = threading.Event()
        error: Exception | None = None
        write = staticmethod(storage.write_bytes)

    store = Store()
    store.is_up.set()

    def write_bytes(path, content):
        store.called.set()
        assert store.is_up.wait(LIMIT_SECONDS)
        if store.error:
            raise store.error
        store.write(path, content)

    monkeypatch.setattr(storage, "write_bytes", write_bytes)
    monkeypatch.setattr("bertjax.training.run.writer._SECONDS_BETWEEN_UPLOADS", 0.0)
    monkeypatch.setattr(writers, "_SECONDS_BETWEEN_ATTEMPTS", 0.0)
    monkeypatch.setattr(writers, "_SECONDS_BETWEEN_ROUNDS", 0.001)
    for wait in ("_SECONDS_AT_A_SAVE", "_SECONDS_AT_THE_END"):  # a store that is up may be slow
        monkeypatch.setattr(writers, wait, LIMIT_SECONDS)
    yield store
    store.is_up.set()


def test_a_store_that_hangs_delays_no_step_and_a_save_for_seconds_only(store, monkeypatch):
    """Neither the lines nor the save wait for the store: it answers only after both."""
    monkeypatch.setattr(writers, "_SECONDS_AT_A_SAVE", 0.05)
    lines = Journal(store.path)
    store.is_up.clear()
    with LogWriter() as writer:
        writer.add(lines)
        lines.append({"step": 0})
        assert store.called.wait(LIMIT_SECONDS)
        for step in range(1, 1001):
            lines.append({"step": step})
        writer.save()
        store.is_up.set()
        assert writer.flush()
    assert [record["step"] for record in read_jsonl(store.path)] == list(range(1001))


BACKEND_ERROR = HttpError({"code": 503, "message": "Backend Error"})


@pytest.mark.parametrize("error", [BACKEND_ERROR, KeyError("a bug"), OSError(28, "No space left")])
def test_errors_are_one_warning_and_no_line_is_lost(store, error, caplog):
    lines = Journal(store.path)
    store.error = error
    with LogWriter() as writer:
        writer.add(lines)
        for step in range(5):
            lines.append({"step": step})
            assert not writer.flush()
        writer.save()  # waits for nothing while the store is down
        assert [record.getMessage().count("cannot be written") for record in caplog.records] == [1]
        store.error = None
        assert writer.flush()
    assert [record["step"] for record in read_jsonl(store.path)] == list(range(5))


def test_a_lock_that_is_lost_for_a_while_ends_no_thread(store):
    class Lock:
        is_lost = True

        def check(self):
            if self.is_lost:
                raise Unavailable("the lock of the workdir could not be renewed")

    lines, lock = Journal(store.path), Lock()
    with LogWriter(lock=lock) as writer:
        writer.add(lines)
        lines.append({"step": 1})
        assert not writer.flush() and not store.path.exists()
        lock.is_lost = False
        assert writer.flush()
    assert [record["step"] for record in read_jsonl(store.path)] == [1]
