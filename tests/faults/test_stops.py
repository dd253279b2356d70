"""A run that was killed or stopped, and resumed, equals one that never stopped."""

import random
import signal
import time

import pytest

from bertjax.runtime.command_line import STOPPED, command
from tests import runs

STEPS = 100


@pytest.mark.slow
def test_killed_and_equal_bit_for_bit(flags, undisturbed, tmp_path):
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    moment = draw.randrange(1, STEPS - 10)
    print(f"seed {seed}: killed after step {moment}")
    process = runs.start(*flags, f"--workdir={tmp_path}", fault="never_ends")
    runs.wait_for_step(tmp_path, moment, process)
    time.sleep(draw.uniform(0.0, 0.1))
    process.kill()
    assert runs.finish(process).returncode == -signal.SIGKILL
    assert runs.call(*flags, f"--workdir={tmp_path}") == 0

    assert runs.weights(tmp_path) == runs.weights(undisturbed)
    assert runs.losses(tmp_path) == runs.losses(undisturbed)
    assert [step for step, *_ in runs.losses(tmp_path)] == list(range(1, STEPS + 1))
    assert runs.records(tmp_path / "samples.jsonl") == runs.records(undisturbed / "samples.jsonl")
    assert [bool(start["resumes"]) for start in runs.records(tmp_path / "starts.jsonl")] == [False, True]


@pytest.mark.slow
def test_a_run_that_was_interrupted_resumes_bit_for_bit(flags, undisturbed, tmp_path, capsys):
    """By Ctrl-C, after another start was refused the workdir. SIGTERM is in test_phases.py and test_stop_signals.py."""
    process = runs.start(*flags, f"--workdir={tmp_path}", fault="stops_only")
    runs.wait_for_step(tmp_path, 13, process)
    process.send_signal(signal.SIGSTOP)  # or it may end before the other one has started
    code = runs.call(*flags, f"--workdir={tmp_path}")
    process.send_signal(signal.SIGCONT)
    assert code == STOPPED, "two runs in one workdir"
    assert capsys.readouterr().err.startswith(f"error: workdir {tmp_path} is in use by a live run")
    process.send_signal(signal.SIGINT)
    stopped = runs.finish(process)
    assert stopped.returncode == STOPPED, stopped.stderr
    line = stopped.stdout.splitlines()[-1]
    last_step = max(int(path.name) for path in (tmp_path / "checkpoints").iterdir())
    assert last_step >= 13
    assert line.startswith(f"stopped and saved at step {last_step}; to resume: {command('train')} ")
    assert all(flag in line for flag in flags)
    assert runs.call(*flags, f"--workdir={tmp_path}") == 0
    assert runs.weights(tmp_path) == runs.weights(undisturbed)
    assert runs.losses(tmp_path) == runs.losses(undisturbed)
