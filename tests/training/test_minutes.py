"""--minutes=N: steps from a measured speed, kept by a run that resumes, and what contradicts them."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from bertjax.config.config_file import load
from bertjax.training.minutes import Speed, interval, with_steps
from bertjax.training.optim.config import OptimizerConfig
from bertjax.training.run.workdir import Workdir
from tests import runs


@pytest.mark.parametrize(
    ("speed", "seconds", "steps"),
    [
        (Speed(step=0.5, evaluation=0.0, every=10), 60, 120),
        (Speed(step=0.5, evaluation=5.0, every=10), 60, 60),  # as many seconds for evaluations as for steps
        (Speed(step=0.5, evaluation=100.0, every=1000), 60, 120),  # the end comes before the first evaluation
        (Speed(step=0.5, evaluation=100.0, every=100), 60, 100),  # the last one is not counted, so the end is at it
        (Speed(step=0.37, evaluation=0.0, every=10), 300, 810),  # two digits, rounded down from 810.8
        (Speed(step=40.0, evaluation=0.0, every=10), 60, 1),
        (Speed(step=90.0, evaluation=0.0, every=10), 60, 0),
    ],
)
def test_steps_and_the_evaluations_between_them_fill_the_time(speed, seconds, steps):
    assert speed.steps_in(seconds, recipe_steps=speed.every) == steps


def test_a_run_shorter_than_an_interval_keeps_its_share():
    assert [interval(850, steps, 4000) for steps in (4000, 850, 849, 170, 1)] == [850, 850, 181, 37, 1]
    assert interval(1000, 500, 1_000_000) == 50  # and not an evaluation after each step
    speed = Speed(step=0.5, evaluation=2.0, every=1000)
    assert speed.steps_in(60, recipe_steps=4000) == 100  # 54 s and 3 evaluations: 108 steps, as two digits
    assert (100 - 1) // interval(1000, 100, 4000) == 3
    assert dataclasses.replace(speed, evaluation=200.0).steps_in(60, recipe_steps=4000) == 60  # half of the time
    steps = [speed.steps_in(seconds, recipe_steps=4000) for seconds in range(1, 2000)]
    assert steps == sorted(steps)


def test_more_time_never_gives_fewer_steps():
    speed = Speed(step=0.11, evaluation=2.3, every=50)
    steps = [speed.steps_in(seconds, recipe_steps=50) for seconds in range(1, 2000)]
    assert steps == sorted(steps)
    for seconds, fitting in enumerate(steps, 1):
        between = (fitting - 1) // speed.every * speed.evaluation if fitting else 0.0
        assert fitting * speed.step + between <= seconds + speed.evaluation


@pytest.fixture
def measured_run(undisturbed, tmp_path):
    """A copy of a run of 100 steps that was started with --minutes=2, according to its workdir."""
    shutil.copytree(undisturbed, workdir := tmp_path / "measured")
    measured = {"minutes": 2.0, "steps": 100, "recipe_steps": 100, "recipe_warmup_steps": 5}
    (workdir / "minutes.json").write_text(json.dumps(measured))
    return workdir


def test_a_run_that_resumes_keeps_its_steps(flags, measured_run, capsys):
    """Whatever the recipe says meanwhile, which is 100 steps here and 5 of warm-up."""
    assert runs.call(*flags, f"--workdir={measured_run}", "--minutes=2", "--config.optimizer.warmup_steps=7") == 0
    assert "minutes: 100 steps, as measured at the first start\n" in capsys.readouterr().out


def test_a_start_without_the_flag_names_it(flags, measured_run, capsys):
    recipe = ["--config.optimizer.warmup_steps=7", "--config.stages.0.steps=90"]
    assert runs.call(*flags, f"--workdir={measured_run}", *recipe) == 2
    error = capsys.readouterr().err
    assert "optimizer.warmup_steps: 5 -> 7" in error and "(it was started with --minutes=2: add the flag, or" in error
    more = ["--longer", "--config.stages.0.steps=101", "--config.optimizer.warmup_steps=5"]
    assert runs.call(*flags, f"--workdir={measured_run}", *more) == 0


def test_another_time_than_that_of_the_run_is_refused(flags, measured_run, undisturbed, tmp_path, capsys):
    assert runs.call(*flags, f"--workdir={measured_run}", "--minutes=3") == 2
    error = capsys.readouterr().err
    assert "holds a run of --minutes=2, which are 100 steps, not --minutes=3" in error and error.count("\n") == 1
    shutil.copytree(undisturbed, tmp_path / "run")
    assert runs.call(*flags, f"--workdir={tmp_path / 'run'}", "--minutes=3") == 2
    error = capsys.readouterr().err
    assert "started without --minutes; leave --minutes=3 out" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("contradiction", "message"),
    [
        ("--minutes=0", "--minutes=0 must be above 0"),
        ("--minutes=nan", "--minutes=nan must be above 0"),
        ("--config.stages.0.steps=9", "--minutes=5 and --config.stages.0.steps=9 both set the steps"),
        ("--config.stages.0.epochs=2", "--minutes=5 and --config.stages.0.epochs=2 both set the steps"),
        ("--seeds=2", "--minutes=5 cannot be combined with --seeds"),
        ("--sweep=seed=1,2", "--minutes=5 cannot be combined with --sweep"),
        ("--longer", "--minutes=5 cannot be combined with --longer"),
        ("--config.init_state=True --config.init_from=runs/a@4", "--minutes=5 cannot be combined with init_state"),
        (
            "--config.stages=[{'steps':7,'seq_len':32}]",
            "--minutes=5 and --config.stages=[{'steps':7,'seq_len':32}] both set",
        ),
        (
            "--settings=seed --seeds=2",
            "--minutes=5 cannot be combined with --seeds",
        ),  # checked, though it trains nothing
        ("--config=configs/bert_base.py", "sets the steps of one stage, and this run has 2, each with its own length"),
    ],
)
def test_what_else_sets_the_steps_is_refused(refused, contradiction, message):
    assert message in refused("--minutes=5", *contradiction.split())


@pytest.mark.slow
def test_a_time_without_two_steps_is_refused(refused):
    assert "--minutes=1e-07 is less than two steps of " in refused("--minutes=1e-7")


@pytest.mark.slow
def test_the_rate_ends_with_the_measured_steps(flags, tmp_path, capsys):
    """On this machine, whatever its speed: the numbers of the record, the schedule and the summary agree."""
    workdir, command = tmp_path / "run", [*flags, f"--workdir={tmp_path / 'run'}", "--minutes=0.02"]
    assert runs.call(*command, "--config.eval.every=20") == 0
    printed = capsys.readouterr().out
    measured = json.loads((workdir / "minutes.json").read_text())
    record = json.loads((workdir / "config.json").read_text())
    steps = measured["steps"]
    assert f"minutes: {steps:,} steps of " in printed and steps >= 2
    for half in ("config", "settings"):
        assert record[half]["stages"][0]["steps"] == steps
        assert record[half]["optimizer"]["warmup_steps"] == 5 * steps // 100
    assert json.loads((workdir / "summary.json").read_text())["steps"] == steps
    rates = [
        line["train/learning_rate"] for line in runs.records(workdir / "metrics.jsonl") if "train/learning_rate" in line
    ]
    assert len(rates) == steps and max(rates) > 1e-3
    np.testing.assert_allclose(rates[-1], 2e-3 / (steps - 5 * steps // 100), rtol=1e-3)  # linear to 0


class Resumed:
    """A session on a workdir that holds a run, with what `with_steps` reads of it."""

    def __init__(self, folder):
        self.files, self.before = Workdir.at(folder), object()


def test_warm_up_and_decay_keep_their_share(tmp_path):
    measured = {"minutes": 1.0, "steps": 500, "recipe_steps": 10_000, "recipe_warmup_steps": 309}
    (tmp_path / "minutes.json").write_text(json.dumps(measured))
    overrides = [
        "eval.every=800",
        "runtime.save_every=400",
        "optimizer.warmup_tokens=1e6",
        "optimizer.schedule={'kind': 'wsd', 'decay_steps': 2000}",
    ]
    config = with_steps(Resumed(tmp_path), load(str(runs.CONFIG), [*overrides, "stages.0.epochs=3"]), 1.0)
    assert (config.stages[0].steps, config.stages[0].epochs) == (500, 0.0)
    assert (config.optimizer.warmup_steps, config.optimizer.warmup_tokens) == (15, 0.0)
    assert (config.eval.every, config.runtime.save_every) == (50, 400)  # a tenth, as 8% would be less; as it was
    assert config.optimizer.schedule.decay_steps == 100
    share = OptimizerConfig(warmup_share=0.1)
    other = with_steps(Resumed(tmp_path), load(str(runs.CONFIG), ["optimizer.warmup_share=0.1"]), 1.0).optimizer
    assert other.warmup_share == share.warmup_share and other.schedule == share.schedule
