"""The GPU benchmark without a GPU: its settings and figures, and a very small run on CPU."""

import argparse
import sys

import numpy as np
import pytest

from benchmarks import gpu_step

SETTINGS = gpu_step.settings(16_384, 0.1)
(SMOKE,) = gpu_step.smoke_settings(0.1).values()


def test_useful_operations_of_large_at_512():
    """6 L (4 D^2 + 2 D F) + 12 L D T' + 6 p (D^2 + V D) a token."""
    setting = SETTINGS["large, 512 tokens"]
    layers, width, feedforward, vocabulary = 24, 1024, 4096, 30_522
    kernels = 6 * layers * (4 * width**2 + 2 * width * feedforward)
    head = 6 * 80 / 512 * (width**2 + vocabulary * width)
    for length in (128, 512):
        expected = kernels + 12 * layers * width * length + head
        assert gpu_step.flops_per_token(setting, length) == pytest.approx(expected)


@pytest.mark.slow
def test_our_arm_runs_packed(capsys):
    chosen = {"bertjax": gpu_step.arms("cpu", "plain")["bertjax"]}
    args = argparse.Namespace(torch_python=sys.executable, steps=1, rounds=1)
    measured = gpu_step.measure(SMOKE, chosen, args, peak=1e12)
    assert measured["arms"]["bertjax"]["loss"] == pytest.approx(np.log(1000) + np.log(2), abs=0.3)
    assert measured["results"]["bertjax"]["flops"] > 0 and "MFU" in capsys.readouterr().out
