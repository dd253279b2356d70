"""Stages: steps, turns of tasks, dispatches, and micro-batches."""

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.cli import merge
from bertjax.config import config_file, export
from bertjax.config.opening import SavedModel
from bertjax.interop import card
from bertjax.training.config import Stage
from bertjax.training.loss import count_micro_batches
from bertjax.training.results import rescore
from bertjax.training.run.record import read_checkpoint
from bertjax.training.stages import StepSpec, Timetable
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


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from([8, 32]), st.integers(1, 9)), min_size=1, max_size=5))
def test_no_row_of_a_length_is_skipped_or_repeated(stages):
    timetable = Timetable([Stage(*stage) for stage in stages], {"bert": 1.0})
    seen = {8: [], 32: []}
    for spec in map(timetable.at, range(timetable.steps)):
        seen[spec.seq_len] += range(spec.first, spec.first + spec.rows)
    for ordinals in seen.values():
        assert ordinals == [*range(len(ordinals))]


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


MLM = {"objective": {"kind": "mlm"}, "examples": {"kind": "doc_sentences"}}


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
        assert rescore.run(f"{tmp_path / 'whole'}@{step}")["eval"]["mlm_loss"] == pytest.approx(logged, abs=1e-6)

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


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 4000))
def test_micro_batches_are_the_fewest_that_are_small_enough(rows, seq_len, micro_tokens):
    count = count_micro_batches(rows, seq_len, micro_tokens)
    possible = [parts for parts in range(1, rows + 1) if rows % parts == 0 and rows // parts * seq_len <= micro_tokens]
    assert count == (min(possible) if possible else rows)
