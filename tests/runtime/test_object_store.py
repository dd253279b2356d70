"""Storage on a server of Google Cloud Storage's protocol, with faults at every kind of call."""

import asyncio
import functools
import types
import uuid

import gcsfs.retry
import pytest
import tenacity
from etils import epath

from bertjax.runtime import storage
from bertjax.runtime.storage import MissingFile
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


def test_a_file_that_is_gone_after_it_was_listed(store, folder):
    assert storage.names_in(folder) == ["old"]
    del store.objects[folder.parts[2], "run/old"]
    with pytest.raises(MissingFile):
        storage.read_bytes(folder / "old")
    assert storage.read_now(folder / "old") == b"" and storage.names_in(folder) == []


def test_an_upload_whose_answer_is_lost_is_complete(store, folder):
    failing(store, "write", [LOST])
    storage.write_bytes(folder / "new", b"new")
    assert store.content("run/new") == b"new"
