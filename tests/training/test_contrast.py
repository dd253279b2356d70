"""A loss that compares all examples of a batch is the same on any number of devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_devices_compare_the_whole_batch():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.training.contrast_on_eight_devices"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    results = json.loads(ended.stdout)
    plain = results.pop("plain")
    assert plain["loss"] > 2.0 and plain["evaluated"] > 2.0, "of ten pairs; one device has two at most"
    assert len(results) == 4
    for layout, difference in results.items():
        assert difference["loss"] < 1e-5 and difference["evaluated"] < 1e-5, layout
        assert difference["right"] == 0 and difference["gradient"] < 1e-5, layout
