"""Journals and events: on a disk that is full now and then, in segments on an object store, and of bounded size."""

import errno
import itertools
import struct

import fsspec
import pytest
from etils import epath
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c

from bertjax.runtime import storage
from bertjax.training.run import writer
from bertjax.training.run.workdir import parts_of, read_jsonl
from bertjax.training.run.writer import Events, Journal
from tests.data.test_remote import Bucket


@pytest.fixture
def path(tmp_path) -> epath.Path:
    return epath.Path(tmp_path / "metrics.jsonl")


@pytest.fixture
def bucket(monkeypatch) -> epath.Path:
    """A folder of an object store: fsspec's file system in memory takes its place."""
    fsspec.register_implementation("s3", Bucket, clobber=True)
    monkeypatch.setattr(Bucket, "store", {})
    monkeypatch.setattr(Bucket, "pseudo_dirs", [""])
    return epath.Path("s3://bucket/run")


class FullDisk:
    """A file that takes some bytes of what is written, and then no more."""

    def __init__(self, file, room: int):
        self._file, self._room = file, room

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, data: bytes) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self._file.write(data[: self._room])
        self._room -= taken
        return taken


def test_lines_wait_while_the_disk_is_full_and_none_is_lost_or_torn(path, monkeypatch):
    lines = Journal(path)
    lines.append({"step": 1})
    lines.write()
    monkeypatch.setattr(writer, "open", lambda *a, **k: FullDisk(open(*a, **k), room=5), raising=False)
    for step in (2, 3):
        lines.append({"step": step})
        with pytest.raises(OSError, match="No space left"):
            lines.write()
        assert read_jsonl(path) == [{"step": 1}]
    monkeypatch.undo()
    lines.append({"step": 4})
    lines.write()
    assert read_jsonl(path) == [{"step": step} for step in (1, 2, 3, 4)]


def test_lines_that_wait_are_bounded(path, monkeypatch, caplog):
    """Also if lines are added while a write fails: the oldest are lost, with one warning."""
    monkeypatch.setattr(writer, "_MOST_WAITING_BYTES", 3 * len('{"step": 1}\n'))
    lines, step = Journal(path), itertools.count(1)

    def fail(*_, **__):
        for _ in range(2):
            lines.append({"step": next(step)})
        raise OSError(errno.ENOSPC, "No space left on device")

    for _ in range(3):
        lines.append({"step": next(step)})
    monkeypatch.setattr(writer, "open", fail, raising=False)
    for _ in range(2):
        with pytest.raises(OSError):
            lines.write()
    monkeypatch.undo()
    lines.write()
    assert read_jsonl(path) == [{"step": 5}, {"step": 6}, {"step": 7}]
    [record] = caplog.records
    assert record.getMessage().endswith("its oldest waiting records are lost")


def test_a_full_file_is_one_warning_also_if_a_line_fills_it_exactly(path, caplog):
    lines = Journal(path, most_bytes=2 * len('{"step": 1}\n'))
    for step in range(4):
        lines.append({"step": step})
    lines.write()
    assert read_jsonl(path) == [{"step": 0}, {"step": 1}]
    assert [record.getMessage().partition(" has enough")[0] for record in caplog.records] == [str(path)]


def test_an_object_store_gets_segments_that_readers_join(bucket, monkeypatch):
    written, write = [], storage.write_bytes
    monkeypatch.setattr(storage, "write_bytes", lambda *args: (written.append(len(args[1])), write(*args)))
    monkeypatch.setattr(writer, "_SEGMENT_BYTES", 100)
    path = bucket / "metrics.jsonl"
    lines = Journal(path)
    for step in range(1, 101):
        lines.append({"step": step})
        lines.write()
    assert [part.name for part in parts_of(path)[:2]] == ["metrics-00000.jsonl", "metrics-00001.jsonl"]
    assert len(parts_of(path)) > 10
    assert max(written) <= 120  # never all of the file
    assert [record["step"] for record in read_jsonl(path)] == list(range(1, 101))
    before = {part.name: part.read_bytes() for part in parts_of(path)}
    resumed = Journal(path, last_step=60)
    resumed.append({"step": 61, "again": True})
    resumed.write()
    assert [record["step"] for record in read_jsonl(path)] == list(range(1, 62))
    assert read_jsonl(path)[-1] == {"step": 61, "again": True}
    parts_of(path)[0].unlink()  # by a rule of the bucket, or in a copy of a part
    once_more = Journal(path, last_step=60)
    once_more.append({"step": 61, "again": False})
    once_more.write()
    assert [record["step"] for record in read_jsonl(path)][-2:] == [60, 61]
    assert sum(before.get(part.name) == part.read_bytes() for part in parts_of(path)) >= 6  # not written again


def events_of(path: epath.Path) -> list[Event]:
    """Read a file of events and verify its checksums."""
    content, found = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        data = content[12 : 12 + length]
        assert content[8:12] == struct.pack("<I", masked_crc32c(content[:8]))
        assert content[12 + length : 16 + length] == struct.pack("<I", masked_crc32c(data))
        found.append(Event.FromString(data))
        content = content[16 + length :]
    return found


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_events_continue_in_new_files_which_drop_nothing(where, tmp_path, bucket, monkeypatch):
    monkeypatch.setattr(writer, "_EVENT_FILE_BYTES", 300)
    folder = bucket / "events" if where == "bucket" else epath.Path(tmp_path)
    log = Events(folder, restored_step=10)
    for step in range(11, 31):
        log.add(step, {"train/loss": 5.0, "train/learning_rate": 1e-3})
        log.write()
    files = [events_of(path) for path in sorted(folder.iterdir(), key=lambda path: path.name)]
    assert len(files) > 3 and all(file[0].file_version == "brain.Event:2" for file in files)
    starts = [event.step for event in itertools.chain(*files) if event.session_log.status == SessionLog.START]
    assert starts == [11]  # TensorBoard drops the steps from there on, which a second one would do again
    steps = [event for event in itertools.chain(*files) if event.summary.value]
    assert [event.step for event in steps] == list(range(11, 31))
    assert {value.tag: value.simple_value for value in steps[0].summary.value}["train/loss"] == 5.0


def test_events_that_cannot_be_written_wait(tmp_path, monkeypatch, caplog):
    log = Events(epath.Path(tmp_path), restored_step=0)
    monkeypatch.setattr(writer, "open", lambda *a, **k: FullDisk(open(*a, **k), room=5), raising=False)
    for step in range(1, 10):
        log.add(step, {"train/loss": 5.0})
        with pytest.raises(OSError):
            log.write()
    monkeypatch.undo()
    log.write()
    [file] = tmp_path.iterdir()
    assert [event.step for event in events_of(file) if event.summary.value] == list(range(1, 10))
    assert not caplog.records
