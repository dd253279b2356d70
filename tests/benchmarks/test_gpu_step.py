"""The GPU benchmark without a GPU: its settings and figures, and a very small run on CPU."""

import argparse
import dataclasses
import sys

import numpy as np
import pytest

from benchmarks import gpu_step
from benchmarks.arms import ours
from bertjax.config import Task
from bertjax.errors import UserError
from bertjax.training.shapes import batch_shapes

SETTINGS = gpu_step.settings(16_384, 0.1)
(SMOKE,) = gpu_step.smoke_settings(0.1).values()


def test_all_arms_train_on_full_rows_with_as_many_tokens():
    assert list(SETTINGS) == ["base, 128 tokens", "base, 512 tokens", "large, 128 tokens", "large, 512 tokens"]
    assert {setting.tokens for setting in SETTINGS.values()} == {16_384}
    assert {(one.seq_len, one.length, one.predicted) for one in SETTINGS.values()} == {(128, 64, 20), (512, 128, 80)}


def test_packed_rows_are_batches_of_the_contract():
    batch = ours.batch(SMOKE)
    shapes = batch_shapes(Task(), SMOKE.vocab_size, SMOKE.seq_len, SMOKE.batch)
    assert {name: array.dtype for name, array in batch.items()} == {name: leaf.dtype for name, leaf in shapes.items()}
    for row in range(SMOKE.batch):
        for slot, first in enumerate(batch["summary_positions_BN"][row]):
            example = slice(first, first + SMOKE.length)
            assert set(batch["examples_BT"][row, example]) == {slot + 1}
            np.testing.assert_array_equal(batch["positions_BT"][row, example], np.arange(SMOKE.length))
            np.testing.assert_array_equal(
                np.diff(batch["segments_BT"][row, example]).nonzero(), [[SMOKE.length // 2 - 1]]
            )
    assert np.unique(batch["example_ids_BN"]).size == SMOKE.batch * SMOKE.examples


def test_useful_operations_of_large_at_512():
    """6 L (4 D^2 + 2 D F) + 12 L D T' + 6 p (D^2 + V D) a token."""
    setting = SETTINGS["large, 512 tokens"]
    layers, width, feedforward, vocabulary = 24, 1024, 4096, 30_522
    kernels = 6 * layers * (4 * width**2 + 2 * width * feedforward)
    head = 6 * 80 / 512 * (width**2 + vocabulary * width)
    for length in (128, 512):
        expected = kernels + 12 * layers * width * length + head
        assert gpu_step.flops_per_token(setting, length) == pytest.approx(expected)


def test_figures_share_of_the_peak():
    setting = SETTINGS["base, 128 tokens"]
    figures = gpu_step.figures(setting, {"bertjax": [300.0, 100.0, 200.0], "transformers": [100.0] * 3}, peak=1e12)
    assert figures["bertjax"]["mfu"] == pytest.approx(200 * gpu_step.flops_per_token(setting, 64) / 1e12)
    assert figures["transformers"]["mfu"] == pytest.approx(100 * gpu_step.flops_per_token(setting, 128) / 1e12)
    assert figures["transformers"]["ratio"]["median"] == 2.0
    assert gpu_step.figures(setting, {"bertjax": [1.0]}, peak=None)["bertjax"]["mfu"] is None


@pytest.mark.slow
def test_our_arm_runs_packed(capsys):
    chosen = {"bertjax": gpu_step.arms("cpu", "plain")["bertjax"]}
    args = argparse.Namespace(torch_python=sys.executable, steps=1, rounds=1)
    measured = gpu_step.measure(SMOKE, chosen, args, peak=1e12)
    assert measured["arms"]["bertjax"]["loss"] == pytest.approx(np.log(1000) + np.log(2), abs=0.3)
    assert measured["results"]["bertjax"]["flops"] > 0 and "MFU" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags, complaint",
    [
        ([], "nvidia-smi shows no GPU; --smoke"),
        (["--smoke", "--attention=triton"], "--attention=triton needs a GPU; leave out --smoke"),
        (["--attention=cudnn"], "--attention=cudnn has no dropout, and --attention-dropout=0.1; give 0"),
        (["--peak-tflops=0"], "--peak-tflops=0.0 must be above 0"),
        (["--steps=0"], "--steps=0 must be at least 1"),
    ],
)
def test_bad_input(flags, complaint, monkeypatch):
    monkeypatch.setattr(gpu_step.shutil, "which", lambda name: None)
    with pytest.raises(UserError) as error:
        gpu_step.main(flags)
    assert complaint in str(error.value)


def test_too_few_tokens_are_named():
    with pytest.raises(UserError, match="--tokens=256 does not fill a row of 512"):
        gpu_step.settings(256, 0.1)


def test_settings_differ_in_nothing_else():
    base, large = (SETTINGS[f"{preset}, 512 tokens"] for preset in ("base", "large"))
    sizes = {name: getattr(large, name) for name in ("layers", "width", "heads", "feedforward")}
    assert dataclasses.replace(base, **sizes) == large
