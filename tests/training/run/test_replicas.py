"""Copies of the state that differ between devices are never saved."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> dict:
    """The output of on_four_devices.py."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    command = [sys.executable, "-m", "tests.training.run.on_four_devices", str(tmp_path_factory.mktemp("saved") / "c")]
    ended = subprocess.run(command, cwd=ROOT, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_state_with_one_wrong_copy_is_not_saved(result):
    assert (result["saved"], result["restored"]) == ([0, 4], 4)
    for outcome in result["outcomes"][1:4]:
        assert outcome.startswith("after step ") and "the older checkpoints are kept" in outcome
        assert "without the machine of that process" in outcome


def test_the_device_with_the_wrong_copy_and_the_array_are_named(result):
    first, last, pair = result["outcomes"][1:4]
    assert "(cpu:0 of process 0 in bias);" in first
    assert "(cpu:3 of process 0 in bias);" in last
    # Two devices hold each half of the kernel: either may be the wrong one.
    assert "(cpu:0 of process 0 in kernel; cpu:2 of process 0 in kernel);" in pair
