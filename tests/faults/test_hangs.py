"""A run that hangs ends by itself, whatever it is doing, and a begun save survives the failure of the run."""

import json
import os
import sys
import threading
import types

import pytest

from bertjax.training import start
from bertjax.training.run import watchdog
from bertjax.training.run.record import read_checkpoint
from tests import disturbed, runs
from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.slow

BRIEF = ["--config.stages.0.steps=12", "--config.eval.every=6"]


def assert_ended(errors: str, state: str) -> None:
    assert f"limit of {state}: {600 if state == 'training' else 1800} s" in errors
    assert f"in the state '{state}' at step " in errors and "in _hang\n" in errors


def test_a_hang_ends_the_run_with_all_stacks(flags, tmp_path):
    done = runs.finish(runs.start(*flags, *BRIEF, f"--workdir={tmp_path}", fault="hang_training"))
    assert done.returncode == 1, done.stderr
    assert_ended(done.stderr, "training")
    assert json.loads((tmp_path / "heartbeat.json").read_text())["steps"] in (0, 12)


@pytest.mark.filterwarnings("ignore:Exception in thread watchdog:pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("state", [state for state in disturbed.HANGS if state != "training"])
def test_a_hang_in_any_other_state_does_so_too(state, flags, tmp_path, monkeypatch, capfd):
    """In this process, which the watchdog does not end: instead, what hangs is interrupted."""
    codes, ended = [], threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()
        sys.exit()  # of the thread of the watchdog

    def wait() -> None:
        assert ended.wait(LIMIT_SECONDS)
        raise KeyboardInterrupt

    owner, name, _ = disturbed.HANGS[state]
    monkeypatch.setattr(owner, name, getattr(owner, name))  # to be restored
    monkeypatch.setattr(start, "Watchdog", disturbed.KnownWatchdog)
    monkeypatch.setattr(disturbed, "watchdogs", [])
    monkeypatch.setattr(disturbed, "wait_to_be_killed", wait)
    monkeypatch.setattr(watchdog, "os", types.SimpleNamespace(write=os.write, _exit=end))
    disturbed.FAULTS[f"hang_{state}"]()
    with pytest.raises(KeyboardInterrupt):
        runs.train_here([*flags, *BRIEF], tmp_path, lambda step: None)
    assert codes == [1]
    assert_ended(capfd.readouterr().err, state)


def test_a_begun_save_survives_a_loss_that_is_not_finite(flags, tmp_path):
    """In two processes, which save together."""
    for done in runs.finish_many(runs.start_many(2, *flags, f"--workdir={tmp_path}", fault="not_finite")):
        assert done.returncode == 1 and "not finite at step 12" in done.stderr.splitlines()[-1], done.stderr
    assert read_checkpoint(tmp_path, "").numbers["steps"] == 10
    heartbeat = json.loads((tmp_path / "heartbeat.json").read_text())
    assert heartbeat["state"] == "failed" and "not finite at step 12" in heartbeat["failure"]
