"""Stages: steps, turns of tasks, dispatches, and micro-batches."""

import dataclasses
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.cli import evaluate, merge
from bertjax.config import config_file, export
from bertjax.config.config import from_dict, to_dict
from bertjax.config.opening import SavedModel, _of_task
from bertjax.interop import card
from bertjax.runtime.errors import UserError
from bertjax.training.config import Stage
from bertjax.training.loss import count_micro_batches
from bertjax.training.optim.config import OptimizerConfig
from bertjax.training.program import Program
from bertjax.training.results import report
from bertjax.training.run.record import read_checkpoint
from bertjax.training.schedule_kinds import WarmupStableDecay
from bertjax.training.schedules import WarmupSegment
from bertjax.training.stages import StepSpec, Timetable, warmup_segments, warmup_steps
from tests import runs

# Batch warm-up, longer rows, then the first length again: shorter than any real run, so that every edge can be seen.
TIMETABLE = Timetable((Stage(3, 8, 4), Stage(2, 8, 16), Stage(4, 32, 2), Stage(1, 8, 4)), {"bert": 1.0})


def test_steps_of_stages():
    assert TIMETABLE.steps == 10
    assert [TIMETABLE.at(step) for step in range(10)] == [
        StepSpec(0, "bert", 8, 4, 0),
        StepSpec(0, "bert", 8, 4, 4),
        StepSpec(0, "bert", 8, 4, 8),
        StepSpec(1, "bert", 8, 16, 12),
        StepSpec(1, "bert", 8, 16, 28),
        StepSpec(2, "bert", 32, 2, 0),
        StepSpec(2, "bert", 32, 2, 2),
        StepSpec(2, "bert", 32, 2, 4),
        StepSpec(2, "bert", 32, 2, 6),
        StepSpec(3, "bert", 8, 4, 44),
    ]


# Two tasks: the second one starts late, has every third step, and then all steps.
MIXED = Timetable((Stage(4, 8, 2, tasks=("a",)), Stage(6, 8, 4), Stage(2, 8, 1, tasks=("b",))), {"a": 2.0, "b": 1.0})


def test_tasks_take_turns_by_their_weights():
    specs = [MIXED.at(step) for step in range(12)]
    assert "".join(spec.task for spec in specs) == "aaaa" + "abaaba" + "bb"
    assert [spec.first for spec in specs if spec.task == "a"] == [0, 2, 4, 6, 8, 12, 16, 20]
    assert [spec.first for spec in specs if spec.task == "b"] == [0, 4, 8, 9]


def test_a_dispatch_ends_with_the_turn_of_its_task():
    assert [MIXED.edge_after(step, 8) for step in range(12)] == [4, 4, 4, 4, 5, 6, 8, 8, 9, 10, 12, 12]


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=4), st.integers(1, 20_000))
def test_shares_of_the_steps_follow_the_weights(weights, steps):
    weights = {f"task{index}": weight for index, weight in enumerate(weights)}
    mixed = Timetable((Stage(steps, 8, 1), Stage(1, 8, 1), Stage(1, 8, 1)), weights)
    after = {}  # {task: number of its turns}, from the first row of its next turn
    for step in (steps, steps + 1):
        after |= {(spec := mixed.at(step)).task: spec.first}
    for task, turns in after.items():
        assert abs(turns - steps * weights[task] / sum(weights.values())) <= 3 + steps / 4096


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from([8, 32]), st.integers(1, 9)), min_size=1, max_size=5))
def test_no_row_of_a_length_is_skipped_or_repeated(stages):
    timetable = Timetable([Stage(*stage) for stage in stages], {"bert": 1.0})
    seen = {8: [], 32: []}
    for spec in map(timetable.at, range(timetable.steps)):
        seen[spec.seq_len] += range(spec.first, spec.first + spec.rows)
    for ordinals in seen.values():
        assert ordinals == [*range(len(ordinals))]


def skipping(timetable: Timetable, *skipped: tuple[int, int]) -> list[int]:
    return [spec.first for spec in map(dataclasses.replace(timetable, skipped=skipped).at, range(timetable.steps))]


def test_skipped_rows_are_those_of_the_skipped_steps_and_of_no_others():
    """The rows of steps 1 to 3 have 8 tokens; all later rows of 8 tokens move up by their 4 + 4 + 16."""
    firsts = [TIMETABLE.at(step).first for step in range(10)]
    moved = [0, 24, 24, 24, 24, 0, 0, 0, 0, 24]
    assert skipping(TIMETABLE, (1, 4)) == [first + rows for first, rows in zip(firsts, moved)]
    assert skipping(TIMETABLE, (9, 9 + 5)) == [*firsts[:9], 44 + 5 * 4], "the last stage counts as endless"


def test_ranges_of_skipped_steps_add_up():
    plain = Timetable((Stage(100, 8, 4),), {"bert": 1.0})
    firsts = skipping(plain, (10, 20), (50, 55))
    assert firsts[:10] == [4 * step for step in range(10)]
    assert firsts[10:50] == [4 * (step + 10) for step in range(10, 50)]
    assert firsts[50:] == [4 * (step + 15) for step in range(50, 100)]


@pytest.mark.parametrize("step", [10, 10**6])
def test_steps_after_the_end_are_an_error(step):
    with pytest.raises(IndexError):
        TIMETABLE.at(step)
    with pytest.raises(IndexError):
        TIMETABLE.edge_after(step, 4)


def test_dispatches_end_at_absolute_multiples_and_with_their_stage():
    assert [TIMETABLE.edge_after(step, 4) for step in range(10)] == [3, 3, 3, 4, 5, 8, 8, 8, 9, 10]
    assert [TIMETABLE.edge_after(step, 1) for step in range(10)] == [*range(1, 11)]
    assert [TIMETABLE.edge_after(step, 100) for step in range(10)] == [3, 3, 3, 5, 5, 9, 9, 9, 9, 10]
    assert [TIMETABLE.edge_after(step, 4, (0, 1, 6, 99)) for step in range(10)] == [1, 3, 3, 4, 5, 6, 8, 8, 9, 10]


def test_the_learning_rate_continues_through_stages_without_a_peak():
    optimizer = OptimizerConfig(learning_rate=2.0, warmup_steps=3)
    through = [Stage(10, 8, 4), Stage(20, 8, 8)]
    assert warmup_segments(through, optimizer) == (WarmupSegment(0, 30, 2.0, 3),)
    restarted = [*through, Stage(5, 32, 2, learning_rate=0.5, warmup_steps=1), Stage(6, 64, 2)]
    assert warmup_segments(restarted, optimizer) == (WarmupSegment(0, 30, 2.0, 3), WarmupSegment(30, 11, 0.5, 1))


def test_only_the_last_segment_needs_the_steps_of_the_decay():
    optimizer = OptimizerConfig(warmup_steps=3, schedule=WarmupStableDecay(decay_steps=8))
    warmup_segments([Stage(5, 8, 4), Stage(8, 8, 4, learning_rate=1.0)], optimizer)
    with pytest.raises(UserError, match="^stages.1.warmup_steps=1 and optimizer.schedule.decay_steps=8 are more than"):
        warmup_segments([Stage(5, 8, 4), Stage(8, 8, 4, learning_rate=1.0, warmup_steps=1)], optimizer)


def test_a_warm_up_may_be_a_share_of_all_steps():
    optimizer = OptimizerConfig(learning_rate=2.0, warmup_share=0.1)
    restarted = [Stage(10, 8, 4), Stage(20, 8, 8), Stage(30, 32, 2, learning_rate=0.5, warmup_steps=1)]
    assert warmup_segments(restarted, optimizer) == (WarmupSegment(0, 30, 2.0, 6), WarmupSegment(30, 30, 0.5, 1))
    message = r"^optimizer.warmup_share=0.6 \(36 steps\) must be below the 30 steps"
    with pytest.raises(UserError, match=message):
        warmup_segments(restarted, OptimizerConfig(warmup_share=0.6))


@pytest.mark.parametrize("tokens, steps", [(1, 1), (15, 1), (64, 2), (320, 10), (384, 11), (1.6e3, 30), (1e9, 30)])
def test_a_warm_up_in_tokens_counts_those_of_each_stage(tokens, steps):
    """32 tokens in each of the first 10 steps, 64 in each of the next 20. A warm-up has at least 1 step, at most 30."""
    optimizer = OptimizerConfig(learning_rate=2.0, warmup_tokens=tokens)
    ramp = [Stage(10, 8, 4), Stage(20, 8, 8)]
    assert warmup_steps(ramp, optimizer) == steps
    if steps < 30:
        assert warmup_segments(ramp, optimizer) == (WarmupSegment(0, 30, 2.0, steps),)
    else:
        message = f"optimizer.warmup_tokens={tokens:g} (30 steps; the run has 1,600 tokens) must be below the 30 steps"
        with pytest.raises(UserError, match=f"^{re.escape(message)}"):
            warmup_segments(ramp, optimizer)


def test_each_segment_is_longer_than_its_warm_up():
    optimizer = OptimizerConfig(warmup_steps=10)
    with pytest.raises(UserError, match="^optimizer.warmup_steps=10 must be below the 10 steps"):
        warmup_segments([Stage(10, 8, 4), Stage(10, 8, 4, learning_rate=1.0)], optimizer)
    with pytest.raises(UserError, match="^stages.1.warmup_steps=7 must be below the 7 steps"):
        warmup_segments([Stage(11, 8, 4), Stage(7, 8, 4, learning_rate=1.0, warmup_steps=7)], optimizer)


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 4000))
def test_micro_batches_are_the_fewest_that_are_small_enough(rows, seq_len, micro_tokens):
    count = count_micro_batches(rows, seq_len, micro_tokens)
    possible = [parts for parts in range(1, rows + 1) if rows % parts == 0 and rows // parts * seq_len <= micro_tokens]
    assert count == (min(possible) if possible else rows)


TWO = [
    "--config.stages=[{'steps': 20, 'seq_len': 16, 'batch': 16}, {'steps': 20, 'seq_len': 32, 'batch': 8}]",
    "--config.eval.every=20",
    "--config.runtime.keep=4",
]


@pytest.fixture(scope="module")
def whole(flags, tmp_path_factory) -> Path:
    """The workdir of a finished run of two stages."""
    workdir = tmp_path_factory.mktemp("two") / "whole"
    assert runs.call(*flags, *TWO, f"--workdir={workdir}") == 0
    return workdir


@pytest.mark.slow
def test_a_run_of_two_stages_resumes_bit_for_bit(flags, whole, tmp_path, capsys):
    """Stopped in the first stage and at its end; then the last stage is made longer."""
    for kept in (10, 20):
        parted = tmp_path / str(kept)
        shutil.copytree(whole, parted)
        for later in range(kept + 10, 50, 10):
            shutil.rmtree(parted / "checkpoints" / str(later))
        shutil.rmtree(parted / "export")
        assert runs.call(*flags, *TWO, f"--workdir={parted}") == 0
        assert runs.weights(parted) == runs.weights(whole)
        assert [step for step, *_ in runs.losses(parted)] == [*range(1, 41)]

    longer = [*flags, *TWO, "--config.stages.1.steps=25", f"--workdir={parted}"]
    assert runs.call(*longer) == 2
    assert "stages.1.steps: 20 -> 25" in capsys.readouterr().err
    assert runs.call(*longer, "--longer") == 0
    assert runs.losses(parted)[-1][0] == 45


@pytest.mark.slow
def test_micro_batches_may_change_when_a_run_resumes(flags, whole, tmp_path):
    """Up to the order of sums the model is the same."""
    shutil.copytree(whole, tmp_path / "parted")
    for later in (20, 30, 40):
        shutil.rmtree(tmp_path / "parted" / "checkpoints" / str(later))
    micro = ["--config.runtime.micro_tokens=64", f"--workdir={tmp_path / 'parted'}"]
    assert runs.call(*flags, *TWO, *micro) == 0
    np.testing.assert_allclose(runs.losses(tmp_path / "parted"), runs.losses(whole), rtol=2e-3)


@pytest.mark.slow
def test_frozen_parameters_are_saved_and_restored_without_moments(flags, tmp_path):
    frozen = ["--config.optimizer.frozen=['embeddings/', 'layers/.*bias']", "--config.optimizer.kind=lamb"]
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    assert runs.call(*flags, *TWO, *frozen, f"--workdir={whole}") == 0
    shutil.copytree(whole, parted)
    for later in (20, 30, 40):
        shutil.rmtree(parted / "checkpoints" / str(later))
    assert runs.call(*flags, *TWO, *frozen, f"--workdir={parted}") == 0
    assert runs.weights(parted) == runs.weights(whole)
    begun, ended = (read_checkpoint(whole, step).params["encoder"] for step in ("10", "40"))
    for after, before in zip(jax.tree.leaves(ended["embeddings"]), jax.tree.leaves(begun["embeddings"]), strict=True):
        np.testing.assert_array_equal(after, before)
    assert not np.array_equal(ended["pooler"]["kernel"], begun["pooler"]["kernel"])


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
