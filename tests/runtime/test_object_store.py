"""Storage on a server of Google Cloud Storage's protocol, with faults at every kind of call."""

import asyncio
import functools
import itertools
import types
import uuid

import gcsfs.retry
import pytest
import tenacity
from etils import epath

from bertjax.runtime import storage
from bertjax.runtime.errors import Unavailable
from bertjax.runtime.storage import MissingFile, StorageError
from bertjax.training.run.journal import Journal
from bertjax.training.run.lease import lease
from bertjax.training.run.workdir import Workdir, parts_of, read_jsonl
from tests.object_store import CUT, LOST, ObjectStore


@pytest.fixture(scope="module")
def server():
    with ObjectStore().running() as server:
        yield server


@pytest.fixture
def store(server, monkeypatch):
    """The server, which gcsfs uses and does not wait for."""
    monkeypatch.setattr(storage, "_WAIT", tenacity.wait_none())
    monkeypatch.setattr(gcsfs.retry, "asyncio", types.SimpleNamespace(sleep=lambda seconds: asyncio.sleep(0)))
    server.fault = lambda kind, name: None
    with server.used_here():
        yield server


@pytest.fixture
def folder(store) -> epath.Path:
    """A folder of a new bucket with one file."""
    folder = epath.Path(f"gs://{uuid.uuid4().hex}/run")
    storage.write_bytes(folder / "old", b"old content")
    return folder


# {call: (the kind of request that fails, the call, what it returns)}
CALLS = {
    "write": ("write", lambda folder: storage.write_bytes(folder / "new", b"new"), None),
    "write of 6 MB": ("write", lambda folder: storage.write_bytes(folder / "new", b"new" * (2 << 20)), None),
    "create": ("write", lambda folder: storage.create(folder / "new", b"new"), True),
    "read": ("read", lambda folder: storage.read_bytes(folder / "old"), b"old content"),
    "read now": ("read", lambda folder: storage.read_now(folder / "old"), b"old content"),
    "exists": ("list", lambda folder: storage.exists(folder), True),
    "stat": ("stat", lambda folder: (folder / "old").stat().length, 11),
    "list": ("list", lambda folder: storage.names_in(folder), ["old"]),
    "rename": ("move", lambda folder: (folder / "old").rename(folder / "new").name, "new"),
    "delete": ("delete", lambda folder: (folder / "old").unlink(), None),
}


def failing(store, kind, faults):
    """Let requests of a kind fail in turn, and count them."""
    faults = iter(faults)

    def fault(called, name):
        return next(faults, None) if called == kind else None

    store.fault = fault
    store.calls.clear()


# Of what can be done once only, a repeated attempt does not know what the first one did, if its answer was cut.
ONCE = ("create", "rename")


@pytest.mark.parametrize(
    ("call", "fault"),
    [(call, fault) for call in CALLS for fault in (503, 429, LOST, CUT, 0.05) if fault != CUT or call not in ONCE],
)
def test_a_call_succeeds_in_spite_of_faults_that_pass(store, folder, call, fault):
    kind, action, result = CALLS[call]
    failing(store, kind, [fault, fault])
    assert storage.retry(functools.partial(action, folder), folder) == result
    assert store.calls[kind] >= (1 if isinstance(fault, float) or fault == CUT else 2)


@pytest.mark.parametrize("call", [call for call in CALLS if call != "rename"])  # gcsfs copies then
def test_a_fault_that_lasts_is_unavailable(store, folder, call):
    kind, action, _ = CALLS[call]
    failing(store, kind, itertools.repeat(503))
    with pytest.raises(Unavailable, match="after 8 attempts; run the same command again later$"):
        storage.retry(functools.partial(action, folder), folder)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("call", ["write", "create", "read", "read now", "list", "delete"])
def test_missing_rights_are_not_retried(store, folder, call, status):
    kind, action, _ = CALLS[call]
    failing(store, kind, itertools.repeat(status))
    with pytest.raises(StorageError) as raised:
        storage.retry(functools.partial(action, folder), folder)
    assert not raised.value.transient and store.calls[kind] <= 2


def test_a_file_that_is_gone_after_it_was_listed(store, folder):
    assert storage.names_in(folder) == ["old"]
    del store.objects[folder.parts[2], "run/old"]
    with pytest.raises(MissingFile):
        storage.read_bytes(folder / "old")
    assert storage.read_now(folder / "old") == b"" and storage.names_in(folder) == []


def test_a_checkpoint_in_a_bucket_counts_once_it_has_its_mark(store, folder):
    """Orbax writes into the final name, so a kill leaves the name of a checkpoint that was never complete."""
    for step, files in ((20, ["state/d", "commit_success.txt"]), (40, ["state/d"]), (100, ["commit_success.txt"])):
        for name in files:
            storage.write_bytes(folder / "checkpoints" / str(step) / name, b"content")
    storage.write_bytes(folder / "checkpoints" / "7.tmp" / "commit_success.txt", b"content")
    assert Workdir.at(folder).saved_steps() == [20, 100]


def test_an_upload_whose_answer_is_lost_is_complete(store, folder):
    failing(store, "write", [LOST])
    storage.write_bytes(folder / "new", b"new")
    assert store.content("run/new") == b"new"


def test_a_journal_and_the_lock_on_this_protocol(store, folder):
    path = folder / "metrics.jsonl"
    with lease(folder / ".lock") as lock:
        lines = Journal(path)
        for step in (1, 2):
            lines.append({"step": step})
            lines.write(everything=True)
        lock.verify()
        assert storage.names_in(folder) == [".lock-00001", "metrics-00000.jsonl", "old"]
    assert Journal(path, last_step=1).path == path
    assert read_jsonl(path) == [{"step": 1}] and len(parts_of(path)) == 1
    assert storage.read_bytes(folder / ".lock-00001") == b"released"
