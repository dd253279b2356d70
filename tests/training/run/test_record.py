"""The record of a run."""

import shutil
import sys

import pytest

from bertjax.data import tokenizer
from bertjax.errors import UserError
from bertjax.training.run import record as records
from bertjax.training.run.record import check_shared, read_record, start_record, write_record
from bertjax.training.run.workdir import Workdir
from tests import runs


def test_a_record_that_has_not_changed_is_not_written_again(undisturbed, tmp_path, monkeypatch):
    """A kill while it is written could otherwise leave a run that nothing can open."""
    shutil.copytree(undisturbed / "tokenizer", tmp_path / "tokenizer")
    shutil.copy(undisturbed / "config.json", tmp_path)
    workdir, before = Workdir.at(tmp_path), runs.content(tmp_path)
    record, words = read_record(workdir), tokenizer.load(tmp_path / "tokenizer")
    written = []
    monkeypatch.setattr("bertjax.training.run.record.write_json", lambda path, value: written.append(value))
    write_record(workdir, record, words)
    assert not written and runs.content(tmp_path) == before
    write_record(workdir, type(record)(record.config, record.identity | {"seed": 1}, record.vocab_size), words)
    assert written[0]["identity"]["seed"] == 1


def test_a_record_that_a_disk_shows_late_is_waited_for(undisturbed, tmp_path, monkeypatch):
    """A client of NFS may remember that the file was absent before process 0 wrote it."""
    workdir, looks = Workdir.at(tmp_path), []
    identity = read_record(Workdir.at(undisturbed)).identity

    def look_again(seconds):
        looks.append(seconds)
        if len(looks) == 40:
            shutil.copy(undisturbed / "config.json", tmp_path)

    monkeypatch.setattr(records.time, "sleep", look_again)
    check_shared(workdir, identity)
    assert sum(looks) == 40.0
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match="is not the workdir of process 0; name one that all processes share"):
        check_shared(workdir, identity)


@pytest.mark.parametrize("flag", [["--on-event=curl -H 'Bearer xyz'"], ["--on-event", "curl -H 'Bearer xyz'"]])
def test_secrets_of_a_command_are_not_recorded(monkeypatch, flag):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "bertjax.train", "--config=a b.py", *flag, "--workdir=run"])
    command = start_record(False, False, {})["command"]
    assert "xyz" not in command and command.endswith("--workdir=run") and "--config=a b.py" in command
    assert "--on-event" in command and "..." in command
