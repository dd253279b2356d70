"""Files of a workdir that were cut, altered or half-written: reported in one line, and never used."""

import json
import os
import shutil

import pytest

from bertjax.runtime.errors import Unavailable, UserError
from bertjax.training.run.checkpoint import Checkpoints
from bertjax.training.run.record import read_checkpoint
from tests import runs
from tests.ports import reserve_port
from tests.training.run.test_record import install


def _altered(checkpoint):
    largest = max((path for path in checkpoint.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def _cut(checkpoint):
    largest = max((path for path in checkpoint.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:100])


def _half_written(checkpoint):
    shutil.rmtree(checkpoint / "state" / "ocdbt.process_0")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [_altered, _cut, _half_written])
def test_a_damaged_newest_checkpoint_is_reported_and_skipped(flags, undisturbed, tmp_path, damage, caplog):
    workdir = tmp_path / "run"
    shutil.copytree(undisturbed, workdir)
    damage(workdir / "checkpoints" / "100")
    shutil.rmtree(workdir / "export")
    assert runs.call(*flags, f"--workdir={workdir}") == 0
    messages = [record.getMessage() for record in caplog.records]
    [damaged] = [message for message in messages if "checkpoint 100 is damaged" in message]
    assert damaged.endswith("; continuing from checkpoint 90") and "resumed at step 90 of 100" in messages
    assert runs.weights(workdir) == runs.weights(undisturbed)
    assert runs.losses(workdir) == runs.losses(undisturbed)


def test_a_damaged_checkpoint_is_read_by_its_remedy(undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr("bertjax.training.run.checkpoint._PAUSE", 0.0)
    shutil.copytree(undisturbed, tmp_path / "run")
    newest, *older = sorted((tmp_path / "run" / "checkpoints").iterdir(), key=lambda path: -int(path.name))
    for checkpoint in (newest, older[0]):
        _cut(checkpoint)
    with pytest.raises(UserError, match=rf"damaged \(.*\); use {tmp_path}/run@(\d+)$") as caught:
        read_checkpoint(tmp_path / "run", "")
    step = str(caught.value).rpartition("@")[2]
    assert step == older[1].name and read_checkpoint(tmp_path / "run", step).numbers["steps"] == int(step)
    for checkpoint in older[1:]:
        _cut(checkpoint)
    with pytest.raises(UserError, match="there is no other one that can be read; restore one from a backup$"):
        read_checkpoint(tmp_path / "run", "")


def test_storage_that_does_not_answer_is_not_called_damage(undisturbed, tmp_path, monkeypatch):
    def restore(self, step, abstract_state=None):
        if step == newest:
            return ordinary(self, step, abstract_state)
        raise Unavailable("the bucket does not answer")

    monkeypatch.setattr("bertjax.training.run.checkpoint._PAUSE", 0.0)
    shutil.copytree(undisturbed, tmp_path / "run")
    newest = max(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir())
    _cut(tmp_path / "run" / "checkpoints" / str(newest))
    ordinary = Checkpoints.restore
    monkeypatch.setattr(Checkpoints, "restore", restore)
    with pytest.raises(Unavailable, match="the bucket does not answer"):
        read_checkpoint(tmp_path / "run", "")


def test_a_run_resumes_with_other_versions_only_if_it_is_told_to(flags, undisturbed, tmp_path, capsys, caplog):
    workdir = tmp_path / "run"
    shutil.copytree(undisturbed, workdir)
    (workdir / "export" / "bertjax.json").unlink()  # a finished run with a whole export would not start again
    [start] = runs.records(workdir / "starts.jsonl")
    start["versions"]["jax"] = "0.0.1"
    (workdir / "starts.jsonl").write_text(json.dumps(start) + "\n")
    before = runs.content(workdir)
    assert runs.call(*flags, f"--workdir={workdir}") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "jax: 0.0.1 -> " in error and "--other-versions" in error
    assert runs.content(workdir) == before
    assert runs.call(*flags, f"--workdir={workdir}", "--other-versions") == 0
    assert "jax: 0.0.1 -> " in caplog.text
    assert runs.weights(workdir) == runs.weights(undisturbed)
    assert len(runs.records(workdir / "starts.jsonl")) == 2
    assert json.loads((workdir / "versions.json").read_text())["jax"] != "0.0.1"


@pytest.mark.slow
def test_hosts_with_other_versions_are_refused(flags, tmp_path):
    install(tmp_path / "site", optax="9.9")
    together = {"JAX_COORDINATOR_ADDRESS": f"localhost:{reserve_port()}", "JAX_NUM_PROCESSES": "2"}
    path = os.environ.get("PYTHONPATH", "")
    paths = (path, f"{tmp_path / 'site'}:{path}")
    processes = [
        runs.start(
            "--distributed",
            *flags,
            f"--workdir={tmp_path / 'run'}",
            **together,
            JAX_PROCESS_ID=str(index),
            PYTHONPATH=path,
        )
        for index, path in enumerate(paths)
    ]
    for done in runs.finish_many(processes):
        assert done.returncode == 2
        line = done.stderr.splitlines()[-1]
        assert line.startswith("error: process 1 has other versions than process 0 (optax: ") and "-> 9.9" in line
    assert not (tmp_path / "run" / "config.json").exists()


def _set_version(path):
    record = json.loads(path.read_text())
    record["format_version"] = 99
    path.write_text(json.dumps(record))


@pytest.mark.parametrize("file", ["config.json", "checkpoints/100/meta/metadata"])
def test_a_workdir_of_a_later_bertjax_is_refused_and_kept(flags, undisturbed, tmp_path, capsys, file):
    workdir = tmp_path / "run"
    shutil.copytree(undisturbed, workdir)
    _set_version(workdir / file)
    before = runs.content(workdir / "checkpoints")
    assert runs.call(*flags, f"--workdir={workdir}") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and "has format 99" in error and "the version that wrote it" in error
    assert runs.content(workdir / "checkpoints") == before


def test_a_config_json_that_is_not_json_is_refused(flags, undisturbed, tmp_path, capsys):
    workdir = tmp_path / "run"
    shutil.copytree(undisturbed, workdir)
    (workdir / "config.json").write_text('{"format_version": 1, "conf')
    assert runs.call(*flags, f"--workdir={workdir}") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {workdir}/config.json is damaged") and error.count("\n") == 1
