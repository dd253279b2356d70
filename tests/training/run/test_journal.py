"""Journals and events on a disk that is full now and then."""

import errno
import logging

import pytest
from etils import epath
from tensorboardX.event_file_writer import EventsWriter

from bertjax.training.run import journal
from bertjax.training.run.events import Events
from bertjax.training.run.journal import Journal
from bertjax.training.run.workdir import read_jsonl


@pytest.fixture
def path(tmp_path) -> epath.Path:
    return epath.Path(tmp_path / "metrics.jsonl")


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


def test_lines_wait_while_the_disk_is_full_and_none_is_lost_or_torn(path, monkeypatch, caplog):
    lines = Journal(path)
    lines.append({"step": 1})
    monkeypatch.setattr(journal, "open", lambda *a, **k: FullDisk(open(*a, **k), room=5), raising=False)
    for step in (2, 3):
        lines.append({"step": step})
        assert read_jsonl(path) == [{"step": 1}]
    monkeypatch.undo()
    lines.append({"step": 4})
    assert read_jsonl(path) == [{"step": step} for step in (1, 2, 3, 4)]
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage().endswith("its lines wait in memory")


def test_a_resumed_journal_drops_what_is_written_again(path):
    for step in (1, 2, 3):
        Journal(path).append({"step": step})
    Journal(path, last_step=2).append({"step": 3, "again": True})
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}, {"step": 3, "again": True}]


def test_events_that_cannot_be_written_do_not_stop_a_run(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    events = Events(epath.Path(tmp_path), restored_step=0)
    events.add(1, {"train/loss": 5.0})
    with monkeypatch.context() as full:
        full.setattr(EventsWriter, "write_event", refuse)
        for step in range(2, 50):
            events.add(step, {"train/loss": 5.0})
    events.add(50, {"train/loss": 4.0})
    events.close()
    assert len(caplog.records) == 1 and "TensorBoard will miss steps" in caplog.text
    assert len(list(tmp_path.iterdir())) >= 2
