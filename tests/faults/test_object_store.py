"""Whole runs with their workdir in a bucket, on a server of Google Cloud Storage's protocol."""

import itertools
import json
import signal

import pytest

from bertjax.runtime.command_line import STOPPED
from tests import runs
from tests.object_store import LOST, ObjectStore
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
_WORKDIR = "--workdir=gs://bucket/run"


@pytest.fixture
def store():
    with ObjectStore().running() as store:
        yield store


def commit_of(step: int) -> str:
    """The object that Orbax writes last of a checkpoint."""
    return f"run/checkpoints/{step}/commit_success.txt"


def records(store, name):
    segments = [part for part in store.names(f"run/{name}-") if part.endswith(".jsonl")]
    return [json.loads(line) for part in segments for line in store.content(part).splitlines()]


def test_a_run_in_a_bucket_survives_a_kill_and_faults_with_equal_bits(flags, undisturbed, store, capsys, caplog):
    calls = itertools.count(1)
    store.fault = lambda kind, name: {50: 503, 100: LOST, 150: 0.3, 200: 429}.get(next(calls) % 250)
    killed = runs.start(*flags, _WORKDIR, fault="never_ends", **store.environment)
    wait_until(lambda: commit_of(30) in store.names(), killed)
    killed.send_signal(signal.SIGKILL)
    runs.finish(killed)
    [mark] = store.names("run/.lock-")
    store.put("bucket", mark, store.content(mark), age=1000.0)  # as after a minute and a half
    with store.used_here():
        assert runs.call(*flags, _WORKDIR) == 0
    output, errors = capsys.readouterr()
    assert "resumed at step" in caplog.text and "Traceback" not in errors
    assert store.content("run/export/model.safetensors") == runs.weights(undisturbed)
    losses = [(r["step"], r["train/mlm_loss"], r["train/nsp_loss"]) for r in records(store, "metrics")]
    assert losses == runs.losses(undisturbed)
    assert records(store, "samples") == runs.records(undisturbed / "samples.jsonl")
    saved = {name.split("/")[2] for name in store.names("run/checkpoints/")}
    assert saved == {path.name for path in (undisturbed / "checkpoints").iterdir()}
    assert json.loads(store.content("run/heartbeat.json"))["state"] == "finished"
    assert store.content("run/.lock-00002") == b"released"
    assert next(calls) > 250, "each fault has come at least once"
    assert "encoder   gs://bucket/run/export" in output


@pytest.mark.parametrize(("moment", "missing"), [(commit_of(20), "export"), ("run/heartbeat.json", "config.json")])
def test_a_run_that_lost_its_lock_saves_nothing_more_and_ends_with_75(flags, store, capsys, moment, missing):
    def take_the_lock(kind, name):
        if (kind, name) == ("write", moment):
            with store.lock:
                store.put("bucket", "run/.lock-00002", b"someone 0")

    store.fault = take_the_lock
    with store.used_here():
        assert runs.call(*flags, _WORKDIR) == STOPPED
    assert "another run has taken over gs://bucket/run" in capsys.readouterr().err.splitlines()[-1]
    assert store.content("run/.lock-00002") == b"someone 0"
    assert not [name for name in store.names() if name.startswith(f"run/{missing}")]


def test_a_bucket_without_rights_is_one_line(flags, store, capsys):
    store.fault = lambda kind, name: 403 if kind == "write" else None
    with store.used_here():
        assert runs.call(*flags, _WORKDIR) == 2
    assert "workdir gs://bucket/run cannot be written" in capsys.readouterr().err.splitlines()[-1]
