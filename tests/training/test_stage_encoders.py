"""Stages whose encoder reads positions with another rotary base."""

import dataclasses

import pytest

from bertjax.cli import evaluate, merge
from bertjax.config import config_file, export
from bertjax.config.config import from_dict, to_dict
from bertjax.config.opening import SavedModel, _of_task
from bertjax.interop import card
from bertjax.training.program import Program
from bertjax.training.results import report
from tests import runs

MODEL = {
    **{"layers": 2, "width": 16, "heads": 2, "feedforward": 32},
    "block": {"kind": "modern", "window": 4, "global_every": 2, "rotary_base": 1000.0},
    "embeddings": {"positions": "none"},
}
MLM = {"objective": {"kind": "mlm"}, "examples": {"kind": "doc_sentences"}}


@pytest.fixture(scope="module")
def program() -> Program:
    stages = [
        {"steps": 5, "seq_len": 16, "rotary_base": 10.0, "local_rotary_base": 20.0, "tasks": ["first"]},
        {"steps": 5, "seq_len": 16, "tasks": ["first"]},
        {"steps": 5, "seq_len": 16, "rotary_base": 1000.0, "tasks": ["second"]},
    ]
    settings = {"model": MODEL, "tasks": {"first": MLM, "second": MLM}, "optimizer": {"warmup_steps": 1}}
    return Program(from_dict(settings | {"stages": stages}), 100)


def test_each_stage_has_its_encoder(program):
    early, late = program.at(0).encoder, program.encoder
    assert early == late.replace({"block.rotary_base": 10.0, "block.local_rotary_base": 20.0})
    assert program.at(1) is program and program.at(2) is program
    assert program.at(0).tasks["first"].model.config.block == early.block
    assert report.stage_line(0, program).endswith(", rotary base 10, local rotary base 20")
    assert "rotary" not in report.stage_line(1, program)


def test_one_task_of_an_early_stage_is_opened(program):
    """Its last stage does not train the whole model."""
    config = dataclasses.replace(program.config, stages=(program.config.stages[0], program.config.stages[2]))
    settings = _of_task(to_dict(config), "first")
    assert len(settings["stages"]) == 1 and from_dict(settings).model == program.config.model


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": {"warmup_steps": 6}},  # more than the steps of the first task alone
        {"runtime": {"keep_at": [8]}},
        {"init_from": "a", "init_layers": [0], "model": MODEL | {"block": {"kind": "bert"}, "embeddings": {}}},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_one_task_is_opened_without_the_rest_of_its_run(settings):
    """What holds for all stages need not hold for those of one task."""
    stages = [
        {"steps": 4, "seq_len": 16, "tasks": ["first"], "layers": 1 if "init_layers" in settings else 0},
        {"steps": 6, "seq_len": 16, "tasks": ["second"]},
    ]
    common = {"model": MODEL, "tasks": {"first": MLM, "second": MLM}, "optimizer": {"warmup_steps": 1}}
    whole = to_dict(from_dict(common | settings | {"stages": stages}))
    for task, steps in (("first", 4), ("second", 6)):
        config = from_dict(_of_task(whole, task))
        assert (*config.tasks, config.stages[0].steps) == (task, steps)


def test_every_task_of_ernie_2_is_opened():
    whole = to_dict(config_file.load("configs/ernie2.py", []))
    assert len(whole["tasks"]) == 5
    assert all([*from_dict(_of_task(whole, task)).tasks] == [task] for task in whole["tasks"])


@pytest.mark.slow
def test_a_run_resumes_bit_for_bit_between_stages_with_other_bases(flags, tmp_path):
    """Checkpoints, scores and the export have the base of the stage that trained the last step."""
    settings = ["kind=modern", "window=4", "global_every=2", "rotary_base=1000"]
    command = [
        *flags,
        *(f"--config.model.block.{setting}" for setting in settings),
        *("--config.model.embeddings.positions=none", "--config.model.embeddings.segments=0"),
        f"--config.tasks.bert={MLM}",
        "--config.stages=[{'steps': 6, 'seq_len': 16, 'batch': 8, 'rotary_base': 10.0},"
        "{'steps': 6, 'seq_len': 32, 'batch': 8}]",
        *("--config.eval.every=6", "--config.runtime.keep_at=[6]"),
    ]
    assert runs.call(*command, f"--workdir={tmp_path / 'whole'}") == 0
    # Moments are reset only if the encoder grows.
    resets = [*command, "--config.optimizer.grow_moments=reset"]
    runs.train_here(resets, tmp_path / "parted", at_edge=lambda step: True if step == 6 else None)
    assert SavedModel(f"{tmp_path / 'parted'}@6").export.encoder.block.rotary_base == 10.0
    assert runs.call(*resets, f"--workdir={tmp_path / 'parted'}") == 0
    assert runs.weights(tmp_path / "parted") == runs.weights(tmp_path / "whole")
    assert export.read(tmp_path / "whole" / "export").encoder.block.rotary_base == 1000.0
    records = runs.records(tmp_path / "whole" / "metrics.jsonl")
    for step in (6, 12):
        [logged] = [line["eval/heldout/mlm_loss"] for line in records if line["step"] == step]
        assert evaluate.run(f"{tmp_path / 'whole'}@{step}")["eval"]["mlm_loss"] == pytest.approx(logged, abs=1e-6)

    # Whatever starts from a checkpoint has its encoder, and not that of the finished run.
    early, copied = (
        f"{tmp_path / 'whole'}@6",
        [f"--config.init_from={tmp_path / 'whole'}@6", "--config.model.preset=init_from"],
    )
    assert (
        config_file.load(str(runs.CONFIG), [flag.removeprefix("--config.") for flag in copied]).model.block.rotary_base
        == 10.0
    )
    assert merge.run([early, f"{tmp_path / 'parted'}@6"], tmp_path / "mean").encoder.block.rotary_base == 10.0
    assert export.read(tmp_path / "mean").encoder.block.rotary_base == 10.0
    assert "| stages | 6 steps of 8 x 16 tokens |" in card._data(SavedModel(early).export)
