"""SIGTERM stops and saves whatever a run is doing, whoever gets it, and whatever else counts or starts processes.

All cases run in processes that one program forks (`stop_cases`). They are those of a launcher, with --distributed, and
a few without it, where bertjax handles the signal itself.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from bertjax.runtime.command_line import STOPPED
from tests.waiting import wait_until

STEPS = 100_000  # more than a run can do before it is stopped


class Case(NamedTuple):
    to: str
    start: str
    steps_per_call: int
    workers: int
    phase: str
    distributed: bool = True


# In the save of step 400: 80 chunks of this start. A count of steps would find it in 321 more.
FIRST = Case("process", "first", 5, 0, "save")
# Each pair of values that two settings can have; without --distributed, each value.
PAIRS = (
    FIRST,
    Case("group", "resumed", 1, 1, "save"),
    Case("process", "resumed", 1, 0, "step"),
    Case("group", "first", 5, 1, "step"),
    Case("process", "first", 1, 1, "evaluation"),
    Case("group", "resumed", 5, 0, "evaluation"),
    Case("group", "resumed", 1, 1, "save", False),
    Case("group", "first", 1, 1, "step", False),
)


class Cases:
    """Runs each case once."""

    def __init__(self, folder: Path, flags: list[str]):
        self._folder, self._flags = folder, flags
        self._codes: dict[Case, tuple[int, int]] = {}
        command = [sys.executable, "-m", "tests.faults.stop_cases"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def workdir(self, case: Case) -> Path:
        return self._folder / "-".join(map(str, case))

    def log(self, case: Case) -> str:
        return self.workdir(case).with_suffix(".log").read_text()

    def __call__(self, case: Case) -> int:
        """Run a case, and return its exit code as soon as no process of its group is left."""
        if case not in self._codes:
            if case.start == "resumed":
                self(FIRST)
                shutil.copytree(self.workdir(FIRST), self.workdir(case))
            self._send(case)
            self._codes[case] = tuple(map(int, self._process.stdout.readline().split()))
        code, group = self._codes[case]
        wait_until(lambda: not group_lives(group))
        return code

    def _send(self, case: Case) -> None:
        settings = {"steps_per_call": case.steps_per_call, "workers": case.workers}
        settings |= {"save_every": 400 if case == FIRST or case.start == "first" else 10}
        flags = [*self._flags, f"--config.stages.0.steps={STEPS}", "--config.eval.every=50", "--platform=cpu"]
        flags += [f"--config.runtime.{name}={value}" for name, value in settings.items()]
        flags += [f"--workdir={self.workdir(case)}", *["--distributed"] * case.distributed]
        environment = {"JAX_COORDINATOR_ADDRESS": f"localhost:{free_port()}", "JAX_NUM_PROCESSES": "1"}
        content = {
            **{"phase": case.phase, "to": case.to, "distributed": case.distributed, "flags": flags},
            **{"output": str(self.workdir(case).with_suffix(".log")), "environment": environment},
        }
        content["environment"]["JAX_PROCESS_ID"] = "0"
        self._process.stdin.write(json.dumps(content) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def newest(workdir: Path) -> int:
    return max(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal())


@pytest.fixture(scope="module")
def cases(flags, tmp_path_factory):
    cases = Cases(tmp_path_factory.mktemp("stops"), flags)
    yield cases
    cases.close()


@pytest.mark.slow
@pytest.mark.parametrize("case", PAIRS, ids=lambda case: "-".join(map(str, case)))
def test_sigterm_stops_and_saves(cases, case):
    assert cases(case) == STOPPED, cases.log(case)
    heartbeat = json.loads((cases.workdir(case) / "heartbeat.json").read_text())
    assert (heartbeat["state"], heartbeat["exit_code"]) == ("stopped", STOPPED)
    begun = newest(cases.workdir(FIRST)) if case.start == "resumed" else 0
    # A start that resumes begins with the evaluation that the first one has left, and may be stopped in it.
    assert begun - (case.phase == "evaluation") < newest(cases.workdir(case)) < STEPS
    assert heartbeat["step"] == newest(cases.workdir(case))
