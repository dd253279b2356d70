"""Runs that branch off a checkpoint of another run, with its optimizer state and step."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests import runs

# A trunk of 40 steps at a constant rate, and two branches that decay over the next 8 and 16.
TRUNK = [
    *("--config.optimizer.schedule.kind=wsd", "--config.optimizer.ema_decay=0.5"),
    *("--config.model.layers=1", "--config.model.width=16", "--config.eval.rows=8"),
]
NO_DECAY, AT_40 = "--config.optimizer.schedule.decay_steps=0", "--config.runtime.keep_at=[40]"
LENGTHS = (8, pytest.param(16, marks=pytest.mark.slow))


def decaying(steps: int) -> list[str]:
    """Flags of a run that decays over this many steps after the first 40."""
    return [*TRUNK, f"--config.optimizer.schedule.decay_steps={steps}", f"--config.stages.0.steps={40 + steps}"]


@pytest.fixture(scope="module")
def trunk(flags, tmp_path_factory) -> Path:
    """A run that is at the constant rate until its end, of which the checkpoint of step 40 is kept."""
    workdir = tmp_path_factory.mktemp("trunk") / "run"
    assert runs.call(*flags, *TRUNK, NO_DECAY, AT_40, "--config.stages.0.steps=48", f"--workdir={workdir}") == 0
    return workdir


def branch_of(trunk: Path) -> list[str]:
    return [f"--config.init_from={trunk}@40", "--config.init_state=True"]


@pytest.mark.parametrize("steps", LENGTHS)
def test_a_branch_is_the_uninterrupted_run_bit_for_bit(flags, trunk, tmp_path, caplog, steps):
    """Weights, average of weights, metrics and totals: those of one run with the schedule of the branch."""
    caplog.set_level("INFO")
    assert runs.call(*flags, *decaying(steps), f"--workdir={tmp_path}/whole") == 0
    assert runs.call(*flags, *decaying(steps), *branch_of(trunk), f"--workdir={tmp_path}/branch") == 0
    for export in ("export", "export_ema"):
        whole, branch = (load_file(tmp_path / run / export / "model.safetensors") for run in ("whole", "branch"))
        assert whole.keys() == branch.keys()
        for path, values in whole.items():
            np.testing.assert_array_equal(branch[path], values)
    whole, branch = (runs.losses(tmp_path / run) for run in ("whole", "branch"))
    assert branch == whole[40:] and branch[0][0] == 41
    figures = [json.loads((tmp_path / run / "summary.json").read_text()) for run in ("whole", "branch")]
    assert figures[0]["tokens"] == figures[1]["tokens"]
    [message] = [record.getMessage() for record in caplog.records if "branches off" in record.getMessage()]
    assert message.endswith(" stages.0.steps: 48 -> 56" if steps == 16 else f"decay_steps: 0 -> {steps}")


def test_a_branch_reads_other_data_and_resumes(flags, trunk, tmp_path):
    """Killed runs resume from checkpoints of their own; nobody needs the trunk then."""
    corpus = runs.write_corpus(tmp_path / "other.txt", documents=40)
    other = [f"--config.data.corpus={corpus}", f"--config.data.tokenizer.model={trunk}/tokenizer"]
    command = [*flags, *decaying(8), *other, *branch_of(trunk), f"--workdir={tmp_path}/run"]
    assert runs.call(*command) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 48
    moved = trunk.rename(tmp_path / "moved")
    try:
        assert runs.call(*command) == 0
    finally:
        moved.rename(trunk)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--config.init_from={trunk}"], "init_state=True continues a checkpoint of a run, and init_from='"),
        (["--config.init_from={trunk}@7"], "@7 is not a checkpoint; that run has "),
        (["--config.init_from={trunk}/export@7"], "has no checkpoints, and init_state=True needs one"),
        (["--config.stages.0.epochs=0.5"], "has trained 40 steps and the stages of this run have 28 in all"),
        (["--config.stages.0.steps=40"], "has trained 40 steps and the stages of this run have 40 in all"),
        (["--config.optimizer.ema_decay=0"], "has another state (opt_state/"),
        (["--config.model.layers=2"], "has another state ("),
        (["--config.model.heads=4"], "computes another function with these weights; set model.heads=2 (not 4)"),
        (
            ["--config.data.tokenizer.vocab_size=300"],
            "has another tokenizer than the corpus; set data.tokenizer.model=",
        ),
    ],
)
def test_what_is_no_branch_of_the_trunk_is_refused(flags, trunk, tmp_path, capsys, changes, message):
    own = [change.format(trunk=trunk) for change in changes]
    decay = decaying(8)[: -1 if "epochs" in changes[0] else None]  # a flag for steps excludes one for epochs
    assert runs.call(*flags, *decay, *branch_of(trunk), *own, f"--workdir={tmp_path}/run") == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_damaged_trunk_is_named(flags, trunk, tmp_path, capsys):
    shutil.copytree(trunk, tmp_path / "trunk")
    files = [path for path in (tmp_path / "trunk" / "checkpoints" / "40" / "state").rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(bytes(byte ^ 1 for byte in largest.read_bytes()))
    command = [*flags, *decaying(8), *branch_of(tmp_path / "trunk"), f"--workdir={tmp_path}/run"]
    assert runs.call(*command) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: init_from={tmp_path}/trunk@40 is damaged (")
    assert error.endswith("); branch off another checkpoint")
