"""A run that hangs ends by itself, whatever it is doing, and a begun save survives the failure of the run."""

import json

import pytest

from bertjax.training.run.record import read_checkpoint
from tests import runs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("state", ["restoring", "training", "evaluating", "saving", "exporting"])
def test_a_hang_ends_the_run_with_all_stacks(flags, tmp_path, state):
    brief = ["--config.stages.0.steps=12", "--config.eval.every=6"]
    done = runs.finish(runs.start(*flags, *brief, f"--workdir={tmp_path}", fault=f"hang_{state}"))
    assert done.returncode == 1, done.stderr
    assert f"limit of {state}: {600 if state == 'training' else 1800} s" in done.stderr
    assert f"in the state '{state}' at step " in done.stderr and "in _hang\n" in done.stderr
    assert json.loads((tmp_path / "heartbeat.json").read_text())["steps"] in (0, 12)


def test_a_begun_save_survives_a_loss_that_is_not_finite(flags, tmp_path):
    done = runs.finish(runs.start(*flags, f"--workdir={tmp_path}", fault="not_finite"))
    assert done.returncode == 1 and "not finite at step 12" in done.stderr.splitlines()[-1], done.stderr
    assert read_checkpoint(tmp_path, "").numbers["steps"] == 10
    heartbeat = json.loads((tmp_path / "heartbeat.json").read_text())
    assert heartbeat["state"] == "failed" and "not finite at step 12" in heartbeat["failure"]


def test_a_begun_save_survives_it_in_two_processes(flags, tmp_path):
    for done in runs.finish_many(runs.start_many(2, *flags, f"--workdir={tmp_path}", fault="not_finite")):
        assert done.returncode == 1 and "not finite at step 12" in done.stderr.splitlines()[-1], done.stderr
    assert read_checkpoint(tmp_path, "").numbers["steps"] == 10
