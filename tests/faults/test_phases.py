"""Faults in each phase of a run, which ends with the bits of an undisturbed run, or in one line with its code."""

import errno
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tenacity

from bertjax.runtime import storage
from bertjax.runtime.command_line import BAD_INPUT, FAILED, FINISHED, STOPPED
from bertjax.training.run import notify
from tests import runs
from tests.faults import injection
from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.slow

STEPS = 12
SHORT = [f"--config.stages.0.steps={STEPS}", "--config.eval.every=6", "--config.runtime.save_every=4"]

# Signals to one process, and the exit code of the start that got it.
STOPS = {"start": STOPPED, "prepare": STOPPED, "restore": STOPPED, "step": STOPPED, "evaluation": STOPPED}
STOPS |= {"save": STOPPED, "export": FINISHED}
# Kills in a step and during a save are in test_stops.py and test_adversity.py, at many moments.
KILLS = ("start", "prepare", "restore", "evaluation", "export")
# Errors of files, each phase and each exit code once: what is written, the error, the exit code of the start, and a
# part of the line if it is not 0.
WRITES = {
    ("start", "ENOSPC"): (".config.json", errno.ENOSPC, FAILED, "No space left on device"),
    ("prepare", "EIO"): ("stores", errno.EIO, STOPPED, "Input/output error"),
    ("prepare", "403"): ("stores", errno.EACCES, BAD_INPUT, "Permission denied"),
    ("step", "EIO"): ("metrics.jsonl", errno.EIO, FINISHED, ""),
    ("evaluation", "ENOSPC"): ("samples.jsonl", errno.ENOSPC, FINISHED, ""),
    ("export", "EIO"): ("bertjax.json", errno.EIO, STOPPED, "Input/output error"),
    ("export", "403"): ("bertjax.json", errno.EACCES, FAILED, "Permission denied"),
}


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    monkeypatch.setattr(storage, "_WAIT", tenacity.wait_none())


@pytest.fixture(scope="module")
def short(flags) -> list[str]:
    """The command line of a run of twelve steps with two evaluations and three saves, without its workdir."""
    return [*flags, *SHORT]


@pytest.fixture(scope="module")
def expected(short, tmp_path_factory) -> Path:
    """Workdir of such a run that nothing disturbed."""
    workdir = tmp_path_factory.mktemp("expected") / "run"
    assert runs.call(*short, f"--workdir={workdir}") == FINISHED
    return workdir


@pytest.fixture
def trains(short, expected, tmp_path, capsys):
    """A function that runs the command in this process, and asserts its exit code and a part of its one line."""
    workdir = tmp_path / "run"

    def train_once(code: int = FINISHED, message: str = "", flags: list[str] = short) -> Path:
        capsys.readouterr()
        assert runs.call(*flags, f"--workdir={workdir}") == code
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert len(errors) == bool(message) and all(message in error for error in errors), errors
        return workdir

    return train_once


def assert_equal(workdir: Path, expected: Path) -> None:
    """Assert equal bits of all weights and all losses of all steps."""
    assert runs.weights(workdir) == runs.weights(expected)
    assert runs.losses(workdir) == runs.losses(expected)
    assert [record["step"] for record in runs.records(workdir / "samples.jsonl")] == [6, 12]


@pytest.fixture
def flags_of(short, tmp_path_factory):
    """flags_of(phase): the command line, for `prepare` with a folder for stores in which nothing is prepared yet."""
    stores = tmp_path_factory.getbasetemp() / "own_stores"  # always the same, since equal settings share a program
    shutil.rmtree(stores, ignore_errors=True)
    return lambda phase: [*short, f"--config.data.store={stores}"] if phase == "prepare" else short


@pytest.mark.parametrize("phase", STOPS)
def test_sigterm(phase, flags_of, trains, expected):
    flags = flags_of(phase)
    with injection.at(phase, lambda: signal.raise_signal(signal.SIGTERM)):
        workdir = trains(STOPS[phase], flags=flags)
    trains(flags=flags)
    assert_equal(workdir, expected)


@pytest.mark.parametrize("phase", KILLS)
def test_kill_9(phase, flags_of, trains, expected, tmp_path):
    flags = flags_of(phase)
    command = [sys.executable, "-m", "tests.faults.injection", phase, "--platform=cpu", *flags]
    done = subprocess.run([*command, f"--workdir={tmp_path / 'run'}"], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    workdir = trains(flags=flags)
    assert_equal(workdir, expected)


@pytest.mark.parametrize("phase, fault", WRITES)
def test_a_file_that_cannot_be_written(phase, fault, flags_of, trains, expected):
    part, error, code, message = WRITES[phase, fault]
    flags = flags_of(phase)
    with injection.failing_writes(part, error, times=1000 if code else 1):
        workdir = trains(code, message, flags)
    trains(flags=flags)
    assert_equal(workdir, expected)


SAVES = {"ENOSPC": errno.ENOSPC, "503": errno.ETIMEDOUT}


@pytest.mark.parametrize("fault", SAVES)
def test_a_save_that_fails_once(fault, trains, expected):
    def fail() -> None:
        raise OSError(SAVES[fault], os.strerror(SAVES[fault]))

    with injection.at("save", fail):
        workdir = trains()
    assert_equal(workdir, expected)


# Hours by which the clock jumps, in each phase.
CLOCKS = {"restore": 24.0, "step": -24.0, "save": -24.0}


@pytest.mark.parametrize("phase", CLOCKS)
def test_a_clock_that_jumps(phase, trains, expected, monkeypatch):
    read_clock = time.time
    jumped = lambda: read_clock() + 3600.0 * CLOCKS[phase]  # noqa: E731
    started = time.monotonic()
    with injection.at(phase, lambda: monkeypatch.setattr(time, "time", jumped)):
        workdir = trains()
    monkeypatch.setattr(time, "time", read_clock)
    assert_equal(workdir, expected)
    [elapsed] = json.loads((workdir / "elapsed.json").read_text())
    assert 0.0 <= elapsed <= time.monotonic() - started


RECORD = """
import fcntl, os
event, step, folder = (os.environ[f'BERTJAX_{name}'] for name in ('EVENT', 'STEP', 'WORKDIR'))
if event == 'failed':  # a command that starts the run again needs its lock, and does not wait for it
    fcntl.flock(open(folder + '/.lock'), fcntl.LOCK_EX | fcntl.LOCK_NB)
print(event, step, file=open(%r, 'a'))
"""


def test_the_events_of_a_run(short, trains, expected, tmp_path, monkeypatch):
    for limit in ("_COMMAND_SECONDS", "_CLOSING_SECONDS"):  # however slow the command is
        monkeypatch.setattr(notify, limit, LIMIT_SECONDS)
    record = f"--on-event={sys.executable} -c {shlex.quote(RECORD % str(tmp_path / 'events'))}"
    with injection.at("step", lambda: signal.raise_signal(signal.SIGTERM)):
        trains(STOPPED, flags=[*short, record])
    stopped = (tmp_path / "events").read_text().splitlines()
    step = stopped[-1].split()[1]
    assert stopped == ["saved 4", f"saved {step}", f"stopped {step}"]
    with injection.failing_writes("bertjax.json", errno.ENOSPC, times=1000):
        trains(FAILED, "No space left on device", flags=[*short, record])
    failed = (tmp_path / "events").read_text().splitlines()[3:]
    assert failed[-2:] == ["saved 12", "failed 12"]
    workdir = trains(flags=[*short, record])
    assert (tmp_path / "events").read_text().splitlines()[3 + len(failed) :] == ["finished 12"]
    assert_equal(workdir, expected)


@pytest.mark.parametrize("command", ["/nowhere/program", "sh -c 'sleep 2000 & wait; touch ended'"])
def test_a_command_for_events_cannot_stop_or_delay_a_run(command, short, trains, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(notify, "_CLOSING_SECONDS", 0.5)
    monkeypatch.setattr(notify, "_COMMAND_SECONDS", 10_000.0)
    monkeypatch.chdir(tmp_path)
    workdir = trains(flags=[*short, f"--on-event={command}"])
    assert not (tmp_path / "ended").exists(), "the run has waited for the command"
    assert_equal(workdir, expected)


def test_torn_lines_of_all_logs(trains, expected):
    with injection.at("step", lambda: signal.raise_signal(signal.SIGTERM)):
        workdir = trains(STOPPED)
    logs = sorted(path for path in workdir.iterdir() if path.suffix == ".jsonl" or path.name == "elapsed.json")
    assert {"metrics.jsonl", "samples.jsonl", "starts.jsonl", "elapsed.json"} <= {path.name for path in logs}
    for path in logs:
        with open(path, "a", encoding="utf-8") as file:
            file.write('{"step": 9, "tor')
    trains()
    assert_equal(workdir, expected)


def test_an_export_that_is_half_written_or_altered(trains, expected):
    workdir = trains()
    for damage in (injection.flip_a_bit, lambda path: path.write_bytes(path.read_bytes()[:100]), os.remove):
        damage(workdir / "export" / "model.safetensors")
        trains()
        assert_equal(workdir, expected)
