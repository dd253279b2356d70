"""Saves: a trial before the first step, one that may fail, two that may not, and the last one."""

import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from bertjax.runtime import platform
from bertjax.training.run.checkpoint import Checkpoints, NotSaved, Retention
from bertjax.training.run.metrics import MetricsLog, Totals
from bertjax.training.run.saving import Saving
from bertjax.training.run.watchdog import Watchdog
from bertjax.training.run.workdir import Workdir
from bertjax.training.run.writer import LogWriter
from tests.waiting import LIMIT_SECONDS, wait_until

STATE = {"step": jnp.int32(0), "params": {"kernel": jnp.ones((100, 50))}}


@pytest.fixture
def saving(tmp_path):
    """Saves to `checkpoints` in the temporary folder."""
    checkpoints = Checkpoints(epath.Path(tmp_path / "checkpoints"), Retention(3))
    log = MetricsLog(Workdir.at(tmp_path), Totals(), 0, LogWriter(False))
    saving = Saving(checkpoints, 0, log, Watchdog(0))
    yield saving
    saving.close()


def warnings(caplog) -> list[str]:
    own = (record for record in caplog.records if record.name.startswith("bertjax"))
    return [record.getMessage() for record in own if record.levelno == logging.WARNING]


def saved(tmp_path) -> list[int]:
    return Checkpoints(epath.Path(tmp_path / "checkpoints")).steps()


def test_a_checkpoint_is_one_event_also_if_the_run_ends_there(saving):
    events = []
    saving._watchdog.notify = lambda *event: events.append(event)
    saving.save(10, STATE, {})
    saving.settle()
    assert saving.save_last(10, STATE, {}) is None
    saving.save(20, STATE, {})  # in the background when the run ends
    assert all(saving.save_last(step, STATE, {}) is None for step in (20, 30))
    assert events == [("saved", 10), ("saved", 20), ("saved", 30)]


def test_a_workdir_that_cannot_hold_a_checkpoint_fails_in_the_trial(saving, tmp_path):
    (tmp_path / "file").write_text("no folder")
    message = r"workdir .*/file cannot hold a checkpoint \(.*\); free disk space or memory, choose another --workdir"
    with pytest.raises(NotSaved, match=message):
        saving.try_out(epath.Path(tmp_path / "file" / "trial"), STATE)


def test_one_failed_save_is_reported_and_two_in_a_row_end_the_run(saving, tmp_path, caplog):
    (tmp_path / "checkpoints").write_text("no folder")
    saving.save(100, STATE, {})
    [warning] = warnings(caplog)
    assert warning.endswith("the run continues, free disk space")
    with pytest.raises(NotSaved, match="two saves in a row have failed, now: a checkpoint could not be written to"):
        saving.save(200, STATE, {})


def test_a_full_disk_is_one_line(small_disk, monkeypatch, capfd):
    """The disk holds one checkpoint of 100 arrays; those of the next ones fail one after the other."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # pytest has its own
    platform.configure_logging()
    checkpoints = Checkpoints(epath.Path(small_disk / "checkpoints"))
    draw, failures = np.random.default_rng(0), []
    for step in range(1, 5):
        arrays = draw.random((100, 20, 500), np.float32)
        try:
            checkpoints.save(step, {"step": jnp.int32(step), "params": list(map(jnp.asarray, arrays))}, {})
            checkpoints.settle()
        except NotSaved as error:
            failures.append(str(error))
    checkpoints.close()
    line = f"a checkpoint could not be written to {small_disk}/checkpoints: No space left on device"
    assert failures == [f"{line}; the older ones are kept"] * 3
    assert "Event loop" not in capfd.readouterr().err and saved(small_disk) == [1]


def test_a_save_that_fails_in_the_background_is_noticed_without_another_save(saving, tmp_path, caplog):
    saving.save(100, STATE, {})
    saving.settle()
    fails = threading.Event()
    saving._checkpoints._writer._finalize_checkpoint = lambda step: fails.wait(LIMIT_SECONDS) and fail_on_disk()
    saving.save(200, STATE, {})
    saving.check()
    assert not warnings(caplog)
    fails.set()
    wait_until(lambda: saving.check() or warnings(caplog))
    [warning] = warnings(caplog)
    assert "could not be written" in warning


def fail_on_disk() -> None:
    raise OSError(28, "No space left on device")


def test_checkpoints_before_a_rise_of_the_loss_are_kept(tmp_path):
    checkpoints = Checkpoints(epath.Path(tmp_path / "checkpoints"), Retention(2))
    for step in range(100, 1000, 100):
        checkpoints.hold_before = 450 if 450 < step < 900 else None
        checkpoints.save(step, STATE, {})
        checkpoints.settle()
        if step == 800:
            assert saved(tmp_path) == [300, 400, 700, 800]
    assert saved(tmp_path) == [800, 900]
    checkpoints.close()


ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> dict:
    """The output of on_four_devices.py."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    command = [sys.executable, "-m", "tests.training.run.on_four_devices", str(tmp_path_factory.mktemp("saved") / "c")]
    ended = subprocess.run(command, cwd=ROOT, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.slow
def test_a_state_with_one_wrong_copy_is_not_saved(result):
    assert (result["saved"], result["restored"]) == ([0, 4], 4)
    for outcome in result["outcomes"][1:4]:
        assert outcome.startswith("after step ") and "the older checkpoints are kept" in outcome
        assert "without the machine of that process" in outcome


def test_the_device_with_the_wrong_copy_and_the_array_are_named(result):
    first, last, pair = result["outcomes"][1:4]
    assert "(cpu:0 of process 0 in bias);" in first
    assert "(cpu:3 of process 0 in bias);" in last
    # Two devices hold each half of the kernel: either may be the wrong one.
    assert "(cpu:0 of process 0 in kernel; cpu:2 of process 0 in kernel);" in pair
