"""slurm.sbatch with stand-ins for srun and scontrol: srun really runs the command of each task."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.launch.conftest import executable
from tests.waiting import LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SBATCH = ROOT / "launch" / "slurm.sbatch"
# Runs one task for each exit code, passes SIGTERM on, and exits with the highest code.
SRUN = """#!/usr/bin/env bash
echo "srun $1 $2 ${*:7}" >>"$CALLS"
SLURM_PROCID=0
for TASK_CODE in $TASK_CODES; do
  export TASK_CODE SLURM_PROCID; "${@:3}" & tasks+=($!)
  ((++SLURM_PROCID))
done
trap 'kill -TERM "${tasks[@]}"' TERM
highest=0
for task in "${tasks[@]}"; do
  code=0; wait "$task" || code=$?
  while kill -0 "$task" 2>/dev/null; do code=0; wait "$task" || code=$?; done
  ((code <= highest)) || highest=$code
done
exit "$highest"
"""
ENDS = '#!/bin/sh\n[ -z "$SAVES" ] || mkdir -p "$RUN/checkpoints/$SAVES"\nexit "$TASK_CODE"\n'


def start(folder: Path, codes: str, training: str = ENDS, workdir: str = "", **environment: str) -> subprocess.Popen:
    """Start the job as Slurm does; each of its tasks ends with one of the codes."""
    executable(folder / "tools" / "srun", SRUN)
    executable(folder / "tools" / "scontrol", '#!/bin/sh\necho "scontrol $*" >>"$CALLS"\n')
    executable(folder / "tools" / "training", training)
    there = {"CALLS": str(folder / "calls"), "TASK_CODES": codes, "RUN": str(folder / "run"), "SAVES": ""}
    slurm = {"SLURM_JOB_ID": "17", "PYTHON": str(folder / "tools" / "training")}
    return subprocess.Popen(
        ["bash", SBATCH, "--config=configs/tiny.py", f"--workdir={workdir or folder / 'run'}"],
        env={"PATH": f"{folder / 'tools'}:{os.environ['PATH']}", **there, **slurm, **environment},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def submit(folder: Path, codes: str, **environment: str) -> tuple[int, bool]:
    """Return the exit code of the job and whether it requeued itself."""
    (folder / "calls").unlink(missing_ok=True)
    process = start(folder, codes, **environment)
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    calls = (folder / "calls").read_text().splitlines()
    training = f"{folder / 'tools' / 'training'} -m bertjax.train --distributed --config=configs/tiny.py"
    assert calls[0] == f"srun --kill-on-bad-exit=0 --wait=0 {training} --workdir={folder / 'run'}", output
    assert calls[1:] in ([], ["scontrol requeue 17"]), output
    assert not list(ROOT.glob("bertjax-17-*")), "the codes of the tasks"
    return process.returncode, len(calls) == 2


@pytest.mark.parametrize(
    "codes, requeues",
    # tests/launch/test_restarts.py has all mixtures
    [("0", False), ("2 2", False), ("0 75", True), ("1 2", True), ("2 75", True), ("134 1", True)],
)
def test_the_job_requeues_itself_after_what_may_pass(tmp_path, codes, requeues):
    messages = [int(code) for code in codes.split() if code != "0"]
    assert submit(tmp_path, codes) == (min(messages, default=0), requeues)


def are_ready(training: int, job: int) -> bool:
    """Whether all processes from a training up to its job have set their traps; a child may be faster than they are."""
    while True:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{training}/status").read_text().splitlines())
        signum = signal.SIGUSR1 if training == job else signal.SIGTERM
        if not int(status["SigCgt"], 16) & 1 << (signum - 1):
            return False
        if training == job:
            return True
        training = int(status["PPid"])


@pytest.mark.parametrize(
    "answer, seconds, code", [("sleep 0.3; exit 75", LIMIT_SECONDS, 75), (":", 1, 137)], ids=["saves", "hangs"]
)
def test_near_the_time_limit_it_saves_and_requeues_even_if_it_hangs(tmp_path, answer, seconds, code):
    training = f'#!/usr/bin/env bash\ntrap "{answer}" TERM\necho $$ >"$RUN.pid"\nwhile :; do sleep 0.05; done\n'
    process = start(tmp_path, "0", training, SAVE_SECONDS=str(seconds))
    pid = tmp_path / "run.pid"
    wait_until(lambda: pid.exists() and pid.read_text().strip())
    wait_until(lambda: are_ready(int(pid.read_text()), process.pid))
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=LIMIT_SECONDS) == code
    assert (tmp_path / "calls").read_text().splitlines()[1:] == ["scontrol requeue 17"]
    assert not list(ROOT.glob("bertjax-17-*"))
    if answer == ":":
        os.kill(int(pid.read_text()), signal.SIGKILL)  # as Slurm does when it requeues a job


def test_the_signal_comes_early_enough_to_save():
    options = [line.removeprefix("#SBATCH ") for line in SBATCH.read_text().splitlines() if line.startswith("#SBATCH ")]
    assert {"--signal=B:USR1@240", "--requeue", "--open-mode=append"} <= set(options)
    body = SBATCH.read_text().split("set -euo pipefail")[1]
    assert "#SBATCH" not in body, "Slurm reads no option after the first command"
    assert "${SAVE_SECONDS:-180}" in body
