"""launch/kaggle/tpu_check.py on CPU: two devices against one, a difference that must be noticed, and no TPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "launch" / "kaggle" / "tpu_check.py"


def run(*flags: str, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    """Run the script from another folder, as a person does."""
    command = [sys.executable, SCRIPT, *flags]
    options = {"cwd": folder, "capture_output": True, "text": True, "timeout": LIMIT_SECONDS}
    return subprocess.run(command, env=os.environ | environment, **options)


def test_it_compares_and_times_on_two_devices(tmp_path):
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=2"
    process = run("--platform=cpu", "--steps=3", "--out=lines.jsonl", folder=tmp_path, XLA_FLAGS=flags)
    assert process.returncode == 0, process.stderr
    [line] = (tmp_path / "lines.jsonl").read_text().splitlines()
    assert process.stdout.splitlines()[-1] == line
    record = json.loads(line)
    assert record["devices"] == 2 and record["equality"]["equal"]
    # Two devices sum in another order, so they are compared and not only copied.
    assert 0 < record["equality"]["gradient_error"] < record["equality"]["gradient_tolerance"]
    assert len(record["steps"]) == 3
    for step in record["steps"].values():
        assert 0 < step["median_seconds"] <= step["slowest_seconds"] and step["loss_last"] < step["loss_first"]
        assert step["tokens_per_second"] > 0


def test_without_a_tpu_it_says_so(tmp_path):
    process = run(folder=tmp_path, TPU_SKIP_MDS_QUERY="1")
    assert process.returncode == 2 and "--platform=cpu" in process.stderr.splitlines()[-1], process.stderr
    assert "Traceback" not in process.stderr
