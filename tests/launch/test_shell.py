"""shellcheck has no complaints about the shell scripts."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

LAUNCH = Path(__file__).parents[2] / "launch"
# shellcheck is installed beside the interpreter, whose folder may not be on the path.
SHELLCHECK = shutil.which("shellcheck", path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}")
SCRIPTS = sorted(file.name for suffix in ("*.sh", "*.sbatch") for file in LAUNCH.glob(suffix))


@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck_passes(name):
    assert subprocess.run(["bash", "-n", name], cwd=LAUNCH).returncode == 0
    done = subprocess.run([SHELLCHECK, "--external-sources", name], cwd=LAUNCH, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_scripts_are_executable():
    assert {"pod_worker.sh", "restarts.sh", "slurm.sbatch", "tpu_pod.sh"} <= set(SCRIPTS)
    assert all((LAUNCH / name).stat().st_mode & 0o111 for name in SCRIPTS if name.endswith(".sh"))


@pytest.mark.parametrize("command", [["bash", "pod_worker.sh"], [sys.executable, "alive.py"]])
def test_what_others_start_has_a_help(command):
    environment = os.environ | {"HOME": "/nowhere"}
    for arguments, code in ((["--help"], 0), ([], 2)):
        done = subprocess.run([*command, *arguments], cwd=LAUNCH, env=environment, capture_output=True, text=True)
        assert done.returncode == code and f"usage: {command[-1]} " in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_example_file_has_every_required_setting():
    required = (LAUNCH / "tpu_pod.sh").read_text().split("for setting in ")[1].split(";")[0].split()
    example = (LAUNCH / "pod.env.example").read_text()
    names = [line.split("=")[0] for line in example.splitlines() if "=" in line and line[0].isalpha()]
    optional = ["REF", "AFTER_FAILURE", "CREATE_FLAGS", "ENVIRONMENT", "ARGS"]
    assert [*required[:5], "SPOT", *required[5:], *optional] == names
