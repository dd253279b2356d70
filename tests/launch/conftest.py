"""A cloud of two workers on this machine, and tpu_pod.sh in a small repository of its own."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT_SECONDS

HERE, LAUNCH = Path(__file__).parent, Path(__file__).parents[2] / "launch"
GIT = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost"]
SETTINGS = {
    "NAME": "pod",
    "PROJECT": "project",
    "ZONE": "zone-b",
    "ACCELERATOR_TYPE": "v4-16",
    "RUNTIME_VERSION": "tpu-ubuntu2204-base",
    "CONFIG": "configs/some.py:small",
    "WORKDIR": "gs://bucket/runs/pod",
}
PIPX = """#!/usr/bin/env bash
venv=${@: -1} worker=$(basename "$HOME")
mkdir -p "$venv/bin"
echo "exec {python} -SE {training} $worker \\"\\$@\\"" >"$venv/bin/python"
echo "echo \\"\\$@\\" >>$FAKE_CLOUD/pip$worker" >"$venv/bin/pip"
chmod +x "$venv/bin"/*
"""

COMMAND = ["-m", "bertjax.train", "--distributed", "--config=configs/some.py:small", "--workdir=gs://bucket/runs/pod"]
COMMAND += ["--config.a=two words"]
LOGGED_OUT = """You do not currently have an active account selected.
Please run:

  $ gcloud auth login

to obtain new credentials."""
LOGIN = "gcloud is not logged in, or its login has expired; run: gcloud auth login"


def json_lines(file: Path) -> list[list[str]]:
    """Return the lines of a file, without one that is still being written."""
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []


def executable(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


class Pod:
    """tpu_pod.sh and its cloud, whose workers run a stand-in for the training."""

    def __init__(self, folder: Path, training: str = "fake_training.py", workers: int = 2):
        self.workers = workers
        self.cloud, self.repository = folder / "cloud", folder / "repository"
        self.cloud.mkdir()
        python = shlex.quote(sys.executable)
        executable(self.cloud / "tools" / "gcloud", f'#!/bin/sh\nexec {python} -SE {HERE / "fake_gcloud.py"} "$@"\n')
        pipx = PIPX.replace("{python}", python).replace("{training}", str(HERE / training))
        executable(self.cloud / "tools" / "pipx", pipx)
        shutil.copytree(LAUNCH, self.repository / "launch", ignore=shutil.ignore_patterns("*.env"))
        (self.repository / "configs").mkdir()
        self.copy_code()
        subprocess.run([*GIT, "init", "-q"], cwd=self.repository, check=True)
        subprocess.run([*GIT, "add", "."], cwd=self.repository, check=True)
        subprocess.run([*GIT, "commit", "-qm", "All of it."], cwd=self.repository, check=True)
        self.settings("--config.a=two words", **SETTINGS)
        self.script()

    def copy_code(self) -> None:
        (self.repository / "bertjax").mkdir()
        (self.repository / "bertjax" / "__init__.py").touch()
        (self.repository / "configs" / "some.py").touch()

    def settings(self, *arguments: str, **settings: str) -> None:
        lines = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
        self.bucket = self.cloud / "buckets" / settings["WORKDIR"].removeprefix("gs://")
        (self.repository / "launch" / "pod.env").write_text("\n".join([*lines, f"ARGS=({shlex.join(arguments)})"]))

    def script(self, **events: list) -> None:
        (self.cloud / "script").write_text(json.dumps(events))

    def start(self, *command: str, stdin: int = subprocess.DEVNULL, **environment: str) -> subprocess.Popen:
        # Workers that end later than others are not judged by the number of checks, unless a test sets PATIENCE.
        quick = {"POLL": "0.05", "BACKOFF": "0", "STOP_SECONDS": f"{LIMIT_SECONDS:.0f}", "PATIENCE": "1000000"}
        quick |= dict.fromkeys(("QUICK", "SLOW", "STORAGE_SECONDS"), f"{LIMIT_SECONDS:.0f}")
        tools = f"{self.cloud / 'tools'}:{os.environ['PATH']}"
        cloud = {"FAKE_CLOUD": str(self.cloud), "FAKE_WORKERS": str(self.workers), "PATH": tools}
        return subprocess.Popen(
            ["bash", self.repository / "launch" / "tpu_pod.sh", *command],
            env={**os.environ, **cloud, **quick, **environment},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __call__(self, *command: str, **environment: str) -> subprocess.CompletedProcess:
        process = self.start(*command, **environment)
        try:
            output, errors = process.communicate(timeout=LIMIT_SECONDS)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def calls(self, *words: str) -> list[list[str]]:
        """Return the calls of gcloud whose arguments contain all these words."""
        return [call for call in json_lines(self.cloud / "calls") if set(words) <= set(call)]

    def attempts(self, worker: int = 0) -> list[list[str]]:
        """Return the arguments of every training that was started on a worker."""
        return json_lines(self.cloud / f"attempts{worker}")

    def installations(self, worker: int = 0) -> int:
        """Return how often the packages were installed on a worker."""
        return (self.cloud / f"pip{worker}").read_text().count("--require-hashes")

    def preempt(self, events: list[tuple[str, float]]) -> None:
        """Set when real_training.py is preempted, one event for each attempt."""
        (self.cloud / "preemptions").write_text(json.dumps(events))

    def preempted(self) -> list[str]:
        """Return a line for each preemption by real_training.py."""
        return (self.cloud / "preempted").read_text().splitlines()

    def close(self) -> None:
        """End what still runs on the workers."""
        for file in (self.cloud / "workers").glob("*/*/bertjax/pid"):
            subprocess.run(["kill", "-KILL", "--", f"-{file.read_text().strip()}"], capture_output=True)

    def exists(self) -> bool:
        return (self.cloud / "pod.json").exists()


@pytest.fixture
def pod(tmp_path):
    for tool in ("bash", "flock", "git", "setsid"):
        if shutil.which(tool) is None:
            pytest.skip(f"a worker, which is a Linux machine, needs {tool}")
    pod = Pod(tmp_path)
    yield pod
    pod.close()
