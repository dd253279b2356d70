"""The record of a run."""

import dataclasses
import shutil
import sys

import pytest

from bertjax.config.config import from_dict
from bertjax.data import tokenizer
from bertjax.runtime.errors import UserError
from bertjax.training import start
from bertjax.training.feeds import Feeds
from bertjax.training.resolve import resolve
from bertjax.training.run.record import (
    RunRecord,
    check_identity,
    read_record,
    start_record,
    write_record,
)
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
    write_record(workdir, dataclasses.replace(record, identity=record.identity | {"seed": 1}), words)
    assert written[0]["identity"]["seed"] == 1


def test_a_mark_that_a_disk_shows_late_is_waited_for(tmp_path, monkeypatch):
    """A client of NFS may remember that the file was absent before process 0 wrote it."""
    workdir, looks = Workdir.at(tmp_path), []
    mark = workdir.root / "mark"

    def look_again(seconds):
        looks.append(seconds)
        if len(looks) == 40:
            mark.touch()

    monkeypatch.setattr(start.time, "sleep", look_again)
    start.wait_for(mark, workdir)
    assert sum(looks) == 40.0
    mark.unlink()
    with pytest.raises(UserError, match="is not the workdir of process 0; name one that all processes share"):
        start.wait_for(mark, workdir)


@pytest.mark.parametrize("flag", [["--on-event=curl -H 'Bearer xyz'"], ["--on-event", "curl -H 'Bearer xyz'"]])
def test_secrets_of_a_command_are_not_recorded(monkeypatch, flag):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "bertjax.train", "--config=a b.py", *flag, "--workdir=run"])
    command = start_record(False, False, {})["command"]
    assert "xyz" not in command and command.endswith("--workdir=run") and "--config=a b.py" in command
    assert "--on-event" in command and "..." in command


def record_of(store, **stage) -> RunRecord:
    """The record of a run with a warm-up of a tenth of its steps."""
    settings = from_dict(
        {
            "model": {"layers": 1, "width": 16, "heads": 2, "feedforward": 32, "max_positions": 32},
            "optimizer": {"warmup_share": 0.1},
            "stages": [{"seq_len": 32, "batch": 4} | stage],
        }
    )
    config = resolve(Feeds(settings, store)).config
    return RunRecord(config, settings, config.identity(store.fingerprint), store.tokenizer.vocab_size)


@pytest.mark.parametrize("name, less, more", [("steps", 20, 40), ("epochs", 2.0, 3.0), ("flops", 1e9, 2e9)])
def test_a_run_may_become_longer_however_its_length_is_given(store, tmp_path, name, less, more):
    workdir, before, longer = Workdir.at(tmp_path), record_of(store, **{name: less}), record_of(store, **{name: more})
    assert before.config.stages[0].steps < longer.config.stages[0].steps
    assert before.config.optimizer.warmup_steps < longer.config.optimizer.warmup_steps
    write_record(workdir, before, store.tokenizer)
    assert check_identity(workdir, before, longer=False) and check_identity(workdir, longer, longer=True)
    with pytest.raises(UserError, match=rf"\(stages.0.{name}: \S+ -> \S+\); add --longer to train it longer"):
        check_identity(workdir, longer, longer=False)
    write_record(workdir, longer, store.tokenizer)
    with pytest.raises(UserError, match="a run cannot be shortened"):
        check_identity(workdir, before, longer=True)


def test_values_that_follow_otherwise_from_the_same_settings_are_refused(store, tmp_path):
    """As if the run had been started by a version that computes the steps of an epoch in another way."""
    workdir, record = Workdir.at(tmp_path), record_of(store, epochs=2.0)
    (stage,) = record.config.stages
    config = dataclasses.replace(record.config, stages=(dataclasses.replace(stage, steps=stage.steps - 1),))
    older = dataclasses.replace(record, config=config, identity=config.identity(store.fingerprint))
    write_record(workdir, older, store.tokenizer)
    with pytest.raises(UserError, match=r"this bertjax derives other values \(stages.0.steps: "):
        check_identity(workdir, record, longer=False)
