"""--minutes=N: steps from a measured speed, kept by a run that resumes, and what contradicts them."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from bertjax.config.config_file import load
from bertjax.training.resolve import interval, scaled, steps_in
from tests import runs


@pytest.mark.parametrize(
    ("step", "evaluation", "every", "seconds", "steps"),
    [
        (0.5, 0.0, 10, 60, 120),
        (0.5, 5.0, 10, 60, 60),  # as many seconds for evaluations as for steps
        (0.5, 100.0, 1000, 60, 120),  # the end comes before the first evaluation
        (0.5, 100.0, 100, 60, 100),  # the last one is not counted, so the end is at it
        (0.37, 0.0, 10, 300, 810),  # two digits, rounded down from 810.8
        (40.0, 0.0, 10, 60, 1),
        (90.0, 0.0, 10, 60, 0),
    ],
)
def test_steps_and_the_evaluations_between_them_fill_the_time(step, evaluation, every, seconds, steps):
    assert steps_in(seconds, step, evaluation, every, recipe_steps=every) == steps


def test_a_run_shorter_than_an_interval_keeps_its_share():
    assert [interval(850, steps, 4000) for steps in (4000, 850, 849, 170, 1)] == [850, 850, 181, 37, 1]
    assert interval(1000, 500, 1_000_000) == 50  # and not an evaluation after each step
    assert steps_in(60, 0.5, 2.0, 1000, 4000) == 100  # 54 s and 3 evaluations: 108 steps, as two digits
    assert (100 - 1) // interval(1000, 100, 4000) == 3
    assert steps_in(60, 0.5, 200.0, 1000, 4000) == 60  # half of the time
    steps = [steps_in(seconds, 0.5, 2.0, 1000, 4000) for seconds in range(1, 2000)]
    assert steps == sorted(steps)


def test_more_time_never_gives_fewer_steps():
    step, evaluation, every = 0.11, 2.3, 50
    steps = [steps_in(seconds, step, evaluation, every, every) for seconds in range(1, 2000)]
    assert steps == sorted(steps)
    for seconds, fitting in enumerate(steps, 1):
        between = (fitting - 1) // every * evaluation if fitting else 0.0
        assert fitting * step + between <= seconds + evaluation


@pytest.mark.parametrize(
    ("contradiction", "message"),
    [
        ("--minutes=0", "stages.0.minutes=0.0 must be above 0"),
        ("--minutes=nan", "stages.0.minutes='nan' is str; it must be a number"),
        ("--minutes=5 --config.stages.0.epochs=2", "--minutes=5 and --config.stages.0.epochs=2 both set the steps"),
        ("--minutes=5 --config.stages=[{'steps':7,'seq_len':32}]", "7,'seq_len':32}] both set the steps"),
        ("--minutes=5 --seeds=2", "--seeds cannot be combined with stages.0.minutes; leave one out"),
        ("--minutes=5 --settings=seed --sweep=seed=1,2", "--sweep cannot be combined with stages.0.minutes"),
        ("--minutes=5 --config.init_state=True --config.init_from=runs/a@4", "run of one stage that starts at step 0"),
        ("--minutes=5 --config=configs/bert_base.py", "run of one stage that starts at step 0"),
    ],
)
def test_what_else_sets_the_steps_is_refused(refused, contradiction, message):
    assert message in refused(*contradiction.split())


@pytest.mark.slow
def test_a_time_without_two_steps_is_refused(refused):
    assert "stages.0.minutes=1e-07 is less than two steps of " in refused("--minutes=1e-7")


def test_a_run_that_resumes_keeps_its_steps(flags, undisturbed, tmp_path, capsys):
    """A copy of a run of 100 steps, as its record is after --minutes=2."""
    shutil.copytree(undisturbed, workdir := tmp_path / "measured")
    record = json.loads((workdir / "config.json").read_text())
    for part in (record["config"], record["settings"], record["identity"]):
        part["stages"][0]["minutes"] = 2.0
    (workdir / "config.json").write_text(json.dumps(record))
    command = [*flags, f"--workdir={workdir}"]
    assert runs.call(*command, "--minutes=2") == 0
    assert "minutes: 100 steps, as measured at the first start\n" in capsys.readouterr().out
    for other, change in (("--minutes=3", "2.0 -> 3.0"), ("--longer", "2.0 -> None")):
        assert runs.call(*command, other) == 2
        error = capsys.readouterr().err
        assert f"(stages.0.minutes: {change}); " in error and error.count("\n") == 1


@pytest.mark.slow
def test_the_measured_steps_are_those_of_the_run(flags, tmp_path, capsys):
    """On this machine, whatever its speed: record, schedule and summary agree."""
    workdir, command = tmp_path / "run", [*flags, f"--workdir={tmp_path / 'run'}", "--config.eval.every=20"]
    assert runs.call(*command, "--minutes=0.01") == 0
    record = json.loads((workdir / "config.json").read_text())
    steps = record["config"]["stages"][0]["steps"]
    assert f"minutes: {steps:,} steps of " in capsys.readouterr().out and steps >= 2
    assert record["settings"]["stages"][0]["steps"] == 100 and record["settings"]["stages"][0]["minutes"] == 0.01
    assert record["config"]["optimizer"]["warmup_steps"] == 5 * steps // 100
    assert json.loads((workdir / "summary.json").read_text())["steps"] == steps
    lines = runs.records(workdir / "metrics.jsonl")
    rates = [line["train/learning_rate"] for line in lines if "train/learning_rate" in line]
    assert len(rates) == steps and max(rates) > 1e-3
    np.testing.assert_allclose(rates[-1], 2e-3 / (steps - 5 * steps // 100), rtol=1e-3)  # linear to 0
    assert runs.call(*command, "--minutes=0.02", "--longer") == 0
    assert json.loads((workdir / "summary.json").read_text())["steps"] == 2 * steps


def test_warm_up_and_decay_keep_their_share():
    overrides = [
        *("eval.every=800", "runtime.save_every=400", "optimizer.warmup_tokens=1e6", "stages.0.steps=10000"),
        "optimizer.schedule={'kind': 'wsd', 'decay_steps': 2000}",
    ]
    config = load(str(runs.CONFIG), overrides)
    # As `resolve` does.
    resolved = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, warmup_steps=309))
    config = scaled(resolved, 500)
    assert config.stages[0].steps == 500
    assert (config.optimizer.warmup_steps, config.optimizer.warmup_tokens) == (15, 0.0)
    assert (config.eval.every, config.runtime.save_every) == (50, 400)  # a tenth, as 8% would be less; as it was
    assert config.optimizer.schedule.decay_steps == 100
    other = scaled(load(str(runs.CONFIG), ["optimizer.warmup_share=0.1"]), 500).optimizer
    assert (other.warmup_share, other.warmup_steps) == (0.1, 50)
