"""slurm.sbatch with stand-ins for srun and scontrol."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.launch.conftest import executable

SBATCH = Path(__file__).parents[2] / "launch" / "slurm.sbatch"


def submit(folder: Path, code: int, *flags: str) -> tuple[int, str]:
    """Return the exit code of the job and the calls of srun and scontrol."""
    record = f'#!/bin/sh\necho "$(basename "$0") $*" >>{folder / "calls"}\n'
    executable(folder / "tools" / "srun", f"{record}exit {code}\n")
    executable(folder / "tools" / "scontrol", record)
    environment = {"PATH": f"{folder / 'tools'}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
    done = subprocess.run(["bash", SBATCH, *flags], env=environment, capture_output=True, text=True)
    calls = folder / "calls"
    return done.returncode, calls.read_text() if calls.exists() else ""


@pytest.mark.parametrize("code", [0, 1, 2, 75, 137])
def test_only_exit_code_75_requeues(tmp_path, code):
    exit_code, calls = submit(tmp_path, code, "--config=configs/tiny.py", "--workdir=/shared/run")
    assert exit_code == code
    command = ".venv/bin/python -m bertjax.train --distributed --config=configs/tiny.py --workdir=/shared/run"
    assert calls.splitlines()[0] == f"srun --kill-on-bad-exit=0 --wait=0 {command}"
    assert calls.splitlines()[1:] == (["scontrol requeue 17"] if code == 75 else [])


def test_without_flags_it_prints_its_usage(tmp_path):
    exit_code, calls = submit(tmp_path, 0)
    assert (exit_code, calls) == (2, "")


def test_the_training_gets_the_signal_in_time_to_save():
    options = [line.removeprefix("#SBATCH ") for line in SBATCH.read_text().splitlines() if line.startswith("#SBATCH ")]
    assert {"--signal=TERM@120", "--requeue", "--open-mode=append"} <= set(options)
    body = SBATCH.read_text().split("set -euo pipefail")[1]
    assert "#SBATCH" not in body, "Slurm reads no option after the first command"
