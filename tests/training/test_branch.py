"""Runs that branch off a checkpoint of another run, with its optimizer state and step."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from bertjax.config.config import Config, from_dict
from bertjax.runtime.errors import UserError
from bertjax.training.branch import check_merging, check_reading, warn_of_rate
from bertjax.training.stages import Timetable
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


@pytest.mark.slow
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
    assert not [record for record in caplog.records if "learning rate" in record.getMessage()]
    figures = [json.loads((tmp_path / run / "summary.json").read_text()) for run in ("whole", "branch")]
    assert figures[0]["tokens"] == figures[1]["tokens"]
    # The seconds of the trunk were spent in another workdir, so those of the branch fit into its own wall time.
    own = figures[1]["accounts"]
    assert figures[1]["seconds"] <= own["wall"] and own["goodput"] < 1
    assert sum(own[kind] for kind in ("step", "data_wait", "compile", "checkpoint", "evaluation")) <= own["wall"]
    read = figures[1]["tokens"] - figures[1]["trunk_tokens"]
    assert 0 < read < figures[1]["trunk_tokens"]
    assert figures[1]["tokens_per_second"] == pytest.approx(read / figures[1]["seconds"])
    [message] = [record.getMessage() for record in caplog.records if "branches off" in record.getMessage()]
    assert message.endswith(" stages.0.steps: 48 -> 56" if steps == 16 else f"decay_steps: 0 -> {steps}")


@pytest.mark.slow
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
        (
            ["--config.quantization.bits=8"],
            "computes another function with these weights; set quantization.bits=0 (not 8)",
        ),
        (["--config.pruning.kind=magnitude"], "has 100.0% of its weights left, and at step 40 the pruning of this "),
        (["--config.stages.0.batch=16"], "(stages.0.batch: 8 -> 16); use these settings of that run"),
        (["--config.stages.0.seq_len=16"], "has read the same data in another order before step 40 (stages.0.seq_len:"),
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


@pytest.mark.slow
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


def config_of(steps: int = 40, tasks: dict | None = None, **settings) -> Config:
    stages = settings.pop("stages", [{"steps": steps, "seq_len": 32, "batch": 8}])
    tasks = {name: {"weight": weight} for name, weight in (tasks or {"a": 1.0}).items()}
    optimizer = {"learning_rate": 1.0, "warmup_steps": 0}
    return from_dict({"init_from": "trunk@20", "tasks": tasks, "stages": stages, "optimizer": optimizer, **settings})


def test_pruning_must_leave_the_same_weights_at_the_checkpoint():
    """Its schedule is in shares of the run: it moves with the number of steps, but not before or after it."""
    pruning = {"kind": "magnitude", "start_share": 0.25, "end_share": 0.75}
    trunk = config_of(40, pruning=pruning)
    with pytest.raises(UserError, match="steps of the run: 40 -> 60"):
        check_merging(trunk, config_of(60, pruning=pruning), 20)
    check_merging(trunk, config_of(60, pruning=pruning), 10)
    check_merging(trunk, config_of(36, pruning=pruning), 30)
    check_merging(config_of(), config_of(pruning=pruning), 10)


STAGE = {"steps": 10, "seq_len": 32, "batch": 8}
MIXTURE = {"a": 1.0, "b": 3.0}


@pytest.mark.parametrize(
    ("trunk", "other", "message"),
    [
        ({}, {"stages": [STAGE, STAGE | {"steps": 28}]}, ""),
        ({}, {"stages": [STAGE | {"steps": 20}, STAGE | {"batch": 16}]}, ""),
        ({}, {"stages": [STAGE, STAGE | {"batch": 16}]}, "stages: "),
        ({"tasks": MIXTURE}, {"tasks": {"a": 2.0, "b": 6.0}}, ""),
        ({"tasks": MIXTURE}, {"tasks": {"a": 1.0, "b": 1.0}}, "stages.0.tasks: 'a 0.25, b 0.75' -> 'a 0.5, b 0.5'"),
        ({"tasks": MIXTURE}, {"tasks": MIXTURE, "stages": [STAGE, STAGE]}, "stages: "),
        ({"tasks": MIXTURE}, {"tasks": MIXTURE, "stages": [STAGE | {"steps": 19, "tasks": ["b"]}, STAGE]}, "stages: "),
    ],
)
def test_stages_before_the_checkpoint_must_read_the_same_rows(trunk, other, message):
    """Refused are those after which a branch would start at other rows than the trunk would read next."""
    trunk, branch = config_of(**trunk), config_of(**other)
    first = [Timetable(of.stages, {name: task.weight for name, task in of.tasks.items()}) for of in (trunk, branch)]
    same = all(first[0].at(step) == first[1].at(step)._replace(stage=0) for step in range(20))
    if message:
        assert not same
        with pytest.raises(UserError, match=f"before step 20 \\({re.escape(message)}"):
            check_reading(trunk, branch, 20)
    else:
        assert same
        check_reading(trunk, branch, 20)


def test_a_jump_of_the_learning_rate_is_a_warning(caplog):
    """A linear schedule over more steps is at a higher rate."""
    trunk, longer = config_of(40), config_of(80)
    warn_of_rate(trunk, trunk, 20)
    assert not caplog.records
    warn_of_rate(trunk, longer, 20)
    [record] = caplog.records
    expected = "trunk@20 has the learning rate 0.525 at step 20, and the schedule of this run has 0.762 there: it jumps"
    assert record.levelname == "WARNING" and record.getMessage() == f"init_from={expected}"
