"""The record of a run."""

import shutil

from bertjax.data import tokenizer
from bertjax.training.run.record import read_record, write_record
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
