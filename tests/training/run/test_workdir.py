"""Working folders: locks, object stores, and files that are written whole."""

import contextlib
import json
import threading

import fsspec
import pytest

from bertjax.runtime.errors import Busy, UserError
from bertjax.training import start
from bertjax.training.run import workdir as workdirs
from bertjax.training.run.workdir import (
    Workdir,
    append_jsonl,
    cut_jsonl,
    local_folder,
    read_json,
    read_jsonl,
    write_json,
)
from bertjax.training.run.writer import Events, Journal
from tests.data.test_remote import Bucket


def test_a_workdir_is_held_by_one_process_at_a_time(tmp_path):
    workdir = Workdir.at(tmp_path / "runs" / "a")
    with workdir.locked():
        with pytest.raises(Busy, match="is in use by a live run; wait for it or choose another --workdir$"):
            with Workdir.at(tmp_path / "runs" / "a").locked():
                pass
        with Workdir.at(tmp_path / "runs" / "b").locked():
            pass
    with workdir.locked():
        pass


@pytest.mark.parametrize("name", ["runs[1]", "a*", "what?", "[a]/run", "a\\b", "s3://bucket/run"])
def test_a_path_where_checkpoints_cannot_be_read_is_refused_before_anything_is_written(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fsspec.register_implementation("s3", Bucket, clobber=True)
    with contextlib.ExitStack() as locks, pytest.raises(UserError, match="; choose another --workdir"):
        start.claim(Workdir.at(name), False, locks)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def bucket(monkeypatch) -> Workdir:
    """A workdir on an object store: fsspec's file system in memory takes its place."""
    fsspec.register_implementation("s3", Bucket, clobber=True)
    monkeypatch.setattr(Bucket, "store", {})
    monkeypatch.setattr(Bucket, "pseudo_dirs", [""])
    return Workdir.at("s3://bucket/run")


def test_a_file_system_of_user_space_is_warned_about(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("bertjax.runtime.locks.file_system_of", lambda path: ("fuse.gcsfuse", "/bucket"))
    with Workdir.at(tmp_path).locked():
        pass
    assert "is on /bucket (fuse.gcsfuse): another machine would not see its lock" in caplog.text


def test_a_workdir_on_an_object_store_holds_what_one_on_a_disk_does(bucket):
    write_json(bucket.config, {"a": "한글"})
    assert read_json(bucket.config, "a") == {"a": "한글"}
    for step in (1, 2, 3):
        append_jsonl(bucket.metrics, {"step": step})
    cut_jsonl(bucket.metrics, 2)
    lines = Journal(bucket.metrics, last_step=2)
    for step in (3, 4, 5):
        lines.append({"step": step})
    lines.write()
    assert [record["step"] for record in read_jsonl(bucket.metrics)] == [1, 2, 3, 4, 5]
    with local_folder(bucket.export) as folder:
        (folder / "tokenizer").mkdir()
        (folder / "tokenizer" / "model").write_bytes(b"mine")
    assert (bucket.export / "tokenizer" / "model").read_bytes() == b"mine"
    events = Events(bucket.events, restored_step=0)
    events.add(1, {"train/loss": 5.0})
    events.write()
    assert [path.name.startswith("events.out.tfevents.") for path in bucket.events.iterdir()] == [True]


def test_json_is_written_whole(tmp_path):
    path = Workdir.at(tmp_path).config
    write_json(path, {"a": ["한글", 1.5, float("nan")], "b": {"c": (float("-inf"), 1)}})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {"a": ["한글", 1.5, None], "b": {"c": [None, 1]}}
    write_json(path, {"a": ["한글", 1.5, None]})
    write_json(path, {"a": ["한글", 2.5, None]})
    assert read_json(path) == {"a": ["한글", 2.5, None]}
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


RECORDS = [{"step": step, "text": "한글"} for step in (1, 2, 5)]


@pytest.fixture
def log(tmp_path):
    path = Workdir.at(tmp_path).metrics
    for record in RECORDS:
        append_jsonl(path, record)
    return path


@pytest.mark.parametrize("cut", range(1, len(json.dumps(RECORDS[-1], ensure_ascii=False).encode()) + 1))
def test_a_line_that_a_kill_cut_short_does_not_count(log, cut):
    log.write_bytes(log.read_bytes()[:-cut])
    assert read_jsonl(log) == RECORDS[:-1]
    cut_jsonl(log, 5)
    append_jsonl(log, {"step": 6})
    assert read_jsonl(log) == [*RECORDS[:-1], {"step": 6}]


def test_an_appended_line_costs_no_other(tmp_path, monkeypatch):
    (log := tmp_path / "log").write_bytes(b"damaged\n")
    monkeypatch.setattr(workdirs, "_content", lambda path: (path.read_bytes(), path.write_bytes(b"damaged\n{}\n"))[0])
    append_jsonl(log, {"step": 6})
    assert log.read_bytes() == b'damaged\n{}\n{"step": 6}\n'


@pytest.mark.parametrize("has_run", [True, False])
def test_a_refused_start_leaves_the_time_of_a_run_without_a_heartbeat(tmp_path, has_run):
    files = Workdir.at(tmp_path)
    files.elapsed.write_text("[7.0]")
    if has_run:
        files.config.write_text("{}")
    with pytest.raises(UserError), start.restoring_heartbeat(files, threading.Event()):
        files.heartbeat.write_text("{}")
        raise UserError("a bad setting")
    assert files.elapsed.exists() == has_run and not files.heartbeat.exists()
