"""The first and the last moments of a start: its signs of life, a refusal, and what may not change its exit code."""

import errno
import json
import os
import shutil

import jax
import pytest
import tenacity

from bertjax.cli import train_output
from bertjax.config.config import Config
from bertjax.runtime import storage
from bertjax.runtime.command_line import BAD_INPUT, FAILED, FINISHED, STOPPED
from bertjax.training.each import Summary
from tests import runs
from tests.faults import injection


@pytest.fixture
def resumed(undisturbed, tmp_path):
    """The workdir of a run, as if a start had been killed while it trained."""
    workdir = tmp_path / "run"
    shutil.copytree(undisturbed, workdir)
    heartbeat = json.loads((workdir / "heartbeat.json").read_text())
    del heartbeat["exit_code"]
    (workdir / "heartbeat.json").write_text(json.dumps(heartbeat | {"state": "training", "time": 1.0, "started": 0.0}))
    return workdir


@pytest.mark.parametrize(
    "record, code, remedy",
    [
        ("its file does not answer", STOPPED, "run the same command again"),
        ("its file is lost", BAD_INPUT, "restore that file"),
        ("it is of another run", BAD_INPUT, "learning_rate: 0.002 -> 0.03); restore the file"),
    ],
)
def test_a_run_does_not_continue_under_settings_that_nobody_has_compared(
    record, code, remedy, flags, resumed, monkeypatch, capsys
):
    path, stat = resumed / "config.json", os.stat
    if record == "it is of another run":
        path.write_text(path.read_text().replace('"learning_rate": 0.002', '"learning_rate": 0.03'))
    if record == "its file is lost":
        path.unlink()
    before = {name: content for name, content in runs.content(resumed).items() if name != "heartbeat.json"}
    if code == STOPPED:

        def stale(name, **options):
            if str(name) == str(path):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return stat(name, **options)

        monkeypatch.setattr(os, "stat", stale)
        monkeypatch.setattr(storage, "_WAIT", tenacity.wait_none())
    assert runs.call(*flags, "--config.optimizer.learning_rate=0.03", f"--workdir={resumed}") == code
    monkeypatch.undo()
    assert remedy in capsys.readouterr().err.splitlines()[-1]
    assert {name: content for name, content in runs.content(resumed).items() if name != "heartbeat.json"} == before


def test_a_device_that_fails_for_an_unknown_reason_is_bad_input_only_before_the_run_has_trained(
    flags, undisturbed, tmp_path, monkeypatch, capsys
):
    def fail():
        raise RuntimeError("UNKNOWN: TPU initialization failed: something new")

    monkeypatch.setattr(jax, "default_backend", fail)
    for workdir, code in ((tmp_path / "new", BAD_INPUT), (undisturbed, FAILED)):
        assert runs.call(*flags, f"--workdir={workdir}") == code
        assert "JAX cannot start on cpu: UNKNOWN: TPU initialization failed" in capsys.readouterr().err


def test_a_finished_command_that_is_repeated_prints_its_result_and_writes_nothing(flags, resumed, capsys):
    def files() -> dict[str, tuple[int, bytes]]:
        return {
            str(path.relative_to(resumed)): (path.stat().st_mtime_ns, path.read_bytes())
            for path in resumed.rglob("*")
            if path.is_file() and path.name not in ("heartbeat.json", ".lock")
        }

    before = files()
    assert runs.call(*flags, f"--workdir={resumed}") == FINISHED
    assert files() == before and json.loads((resumed / "heartbeat.json").read_text())["state"] == "finished"
    printed = capsys.readouterr().out
    assert f"encoder   {resumed / 'export'}" in printed and "mlm_loss" in printed and "next      " in printed
    shutil.move(resumed / "checkpoints", resumed.parent / "moved")  # to save space
    assert runs.call(*flags, f"--workdir={resumed}") == FINISHED
    shutil.move(resumed.parent / "moved", resumed / "checkpoints")
    assert files() == before
    weights = resumed / "export" / "model.safetensors"
    injection.flip_a_bit(weights)  # it is not what was written, so it is written again
    assert runs.call(*flags, f"--workdir={resumed}") == FINISHED
    assert weights.read_bytes() == before["export/model.safetensors"][1]


def test_what_cannot_be_printed_after_the_end_is_a_warning(tmp_path, caplog):
    finished = Summary(100, True, {"not": "the figures of a run"}, tmp_path)
    assert train_output.report_result(finished, Config(), []) == FINISHED
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"the results are in {tmp_path}, but could not be printed: ")
