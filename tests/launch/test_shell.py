"""The shell scripts are shell that shellcheck finds nothing in."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

LAUNCH = Path(__file__).parents[2] / "launch"
# It is installed beside the interpreter, whose folder need not be on the path.
SHELLCHECK = shutil.which("shellcheck", path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}")
SCRIPTS = sorted(file.name for suffix in ("*.sh", "*.sbatch") for file in LAUNCH.glob(suffix))


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_is_clean(name):
    assert subprocess.run(["bash", "-n", name], cwd=LAUNCH).returncode == 0
    done = subprocess.run([SHELLCHECK, "--external-sources", name], cwd=LAUNCH, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_shellcheck_finds_something_in_what_is_wrong(tmp_path):
    (tmp_path / "wrong.sh").write_text("#!/usr/bin/env bash\nrm $1\n")
    assert subprocess.run([SHELLCHECK, tmp_path / "wrong.sh"], capture_output=True).returncode == 1


def test_the_scripts_can_be_run():
    assert {"pod_worker.sh", "slurm.sbatch", "tpu_pod.sh"} <= set(SCRIPTS)
    assert all((LAUNCH / name).stat().st_mode & 0o111 for name in SCRIPTS if name.endswith(".sh"))


def test_the_example_of_settings_names_every_one_that_is_asked_for():
    asked = (LAUNCH / "tpu_pod.sh").read_text().split("for setting in ")[1].split(";")[0].split()
    example = (LAUNCH / "pod.env.example").read_text()
    names = [line.split("=")[0] for line in example.splitlines() if "=" in line and line[0].isalpha()]
    assert [*asked[:5], "SPOT", *asked[5:], "REF", "ARGS"] == names
