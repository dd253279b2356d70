"""Full disks, clocks that go backwards, losses that are not finite, other numbers of devices: the run continues."""

import contextlib
import itertools
import math
import os
import re
import shutil
import signal

import numpy as np
import pytest

from bertjax.runtime.command_line import STOPPED
from bertjax.training import loop
from bertjax.training.run.checkpoint import Checkpoints
from tests import runs
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def fill(path) -> None:
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)


def test_a_full_disk_costs_checkpoints_but_no_steps(flags, undisturbed, small_disk, caplog, monkeypatch):
    workdir, filler = small_disk / "run", small_disk / "filler"
    savers, save = [], Checkpoints.save

    def save_and_note(self, *arguments):
        savers.append(self)
        save(self, *arguments)

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if "could not be written" in record.getMessage()]

    def at_edge(step: int) -> None:
        if step == 25:
            wait_until((workdir / "checkpoints" / "20").exists)
            fill(filler)
        if step == 39:  # a second failed save, that of step 40, would end the run
            wait_until(lambda: not savers[-1].is_saving)
        if warnings() and filler.exists():
            finished = {path.name for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal()}
            assert 30 < step <= 40 and finished == {"10", "20"}
            filler.unlink()

    monkeypatch.setattr(Checkpoints, "save", save_and_note)
    runs.train_here(flags, workdir, at_edge)
    [warning] = warnings()
    assert warning.endswith("the older ones are kept; the run continues, free disk space")
    assert runs.weights(workdir) == runs.weights(undisturbed)
    assert runs.losses(workdir) == runs.losses(undisturbed)
    names = {path.name for path in (workdir / "checkpoints").iterdir()}
    # What Orbax could not finish may stay until the next start, which removes it.
    assert {name for name in names if not name.endswith(".orbax-checkpoint-tmp")} == {"40", "80", "90", "100"}


def test_a_batch_that_is_not_finite_costs_only_its_step(flags, tmp_path, monkeypatch, caplog):
    put, steps = loop.put_batches, itertools.count(1)

    def put_poisoned(batches, mesh):
        if next(steps) == 30:
            batches = [batch | {"mlm_weights_BK": batch["mlm_weights_BK"] * np.float32("nan")} for batch in batches]
        return put(batches, mesh)

    monkeypatch.setattr(loop, "put_batches", put_poisoned)
    runs.train_here([*flags, "--config.runtime.max_skipped=1"], tmp_path, lambda step: None)
    assert [r.getMessage() for r in caplog.records if "was skipped" in r.getMessage()] == [
        "step 30 was skipped: its loss, gradient or update is not finite"
    ]
    records = runs.records(tmp_path / "metrics.jsonl")
    assert [record["step"] for record in records if record["train/mlm_loss"] is None] == [30]
    assert records[29]["train/update_norm"] == 0.0
    assert records[29]["train/parameter_norm"] == records[28]["train/parameter_norm"]
    assert all(math.isfinite(record["train/mlm_loss"]) for record in records[30:])


def test_a_kill_during_a_save(flags, undisturbed, tmp_path):
    checkpoints = tmp_path / "checkpoints"
    process = runs.start(*flags, f"--workdir={tmp_path}", fault="endless_save_of_20")
    wait_until(lambda: any(path.name.startswith("20.") for path in checkpoints.glob("*")), process)
    process.kill()
    assert runs.finish(process).returncode == -signal.SIGKILL
    assert runs.call(*flags, f"--workdir={tmp_path}") == 0
    assert runs.weights(tmp_path) == runs.weights(undisturbed)
    assert runs.losses(tmp_path) == runs.losses(undisturbed)
    assert sorted(int(path.name) for path in checkpoints.iterdir()) == [40, 80, 90, 100]


def test_a_resume_on_other_devices_gives_the_same_losses(flags, undisturbed, tmp_path):
    """Of a run of one device, on more devices and then on fewer."""
    runs.train_here(flags, tmp_path, lambda step: True if step == 20 else None)
    for devices, moment in ((4, 40), (2, None)):
        xla_flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
        fault = "stops_only" if moment else ""
        process = runs.start(*flags, f"--workdir={tmp_path}", fault=fault, XLA_FLAGS=xla_flags)
        if moment:
            runs.wait_for_step(tmp_path, moment, process)
            process.send_signal(signal.SIGTERM)
        done = runs.finish(process)
        assert done.returncode == (STOPPED if moment else 0), done.stderr
        assert re.search(
            rf"the checkpoint was saved on \d cpu device.* the run continues on {devices} cpu device", done.stderr
        )
    losses, expected = np.array(runs.losses(tmp_path)), np.array(runs.losses(undisturbed))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_a_corpus_that_was_replaced_between_two_starts_is_refused(flags, undisturbed, tmp_path, capsys):
    workdir = tmp_path / "run"
    shutil.copytree(undisturbed, workdir)
    corpus = runs.write_corpus(tmp_path / "corpus.txt")
    corpus.write_text(corpus.read_text() + "\n\nOne more document than there was. It has two sentences.")
    before = runs.content(workdir / "checkpoints")
    assert runs.call(*flags, f"--config.data.corpus={corpus}", f"--workdir={workdir}") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: workdir ") and "data.store_fingerprint: " in error
    assert runs.content(workdir / "checkpoints") == before
