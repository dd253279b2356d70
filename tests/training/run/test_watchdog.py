"""The watchdog: late steps are logged, and a run that hangs ends by itself, with the stacks of all threads."""

import itertools
import json
import logging
import subprocess
import sys
import threading
import time

import pytest
from etils import epath

from bertjax.training.run import heartbeat as heartbeats
from bertjax.training.run import watchdog as watchdogs
from bertjax.training.run.heartbeat import Heartbeat
from bertjax.training.run.watchdog import TRAINING, Watchdog
from tests.waiting import wait_until


class Clock:
    """A clock that a test sets, and that knows how often the watchdog has read it, which it does once a tick."""

    def __init__(self):
        self.now, self.reads = 1000.0, 0

    def __call__(self) -> float:
        self.reads += threading.current_thread().name == "watchdog"
        return self.now

    def wait(self, seconds: float) -> None:
        """Let time pass, and the watchdog see it: at its second tick from now on, the first is complete."""
        self.now += seconds
        reads = self.reads
        wait_until(lambda: self.reads >= reads + 2)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(watchdogs.time, "monotonic", clock)
    return clock


def beat(watchdog: Watchdog, clock: Clock, times: int) -> None:
    for step in range(times):
        watchdog.beat(step)
        clock.wait(0.005)


def warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_step_that_is_late_is_logged_once(clock, caplog):
    with Watchdog(0, least=0.3) as watchdog, watchdog.state(TRAINING):
        beat(watchdog, clock, 10)
        assert warnings(caplog) == []
        clock.wait(0.5)
        clock.wait(0.5)
        watchdog.beat(10)
        clock.wait(0.01)
    [warning] = warnings(caplog)
    assert warning.startswith("a step has taken ") and "the median is 0.005 s" in warning


def test_time_outside_of_steps_is_not_counted(clock, caplog):
    with Watchdog(0, least=0.2) as watchdog, watchdog.state(TRAINING):
        beat(watchdog, clock, 10)
        with watchdog.state("evaluating"):
            clock.wait(0.6)
        beat(watchdog, clock, 3)
    assert warnings(caplog) == []


def test_the_first_steps_may_take_any_time(clock, caplog):
    with Watchdog(0, least=0.1) as watchdog, watchdog.state(TRAINING):
        beat(watchdog, clock, 3)
        clock.wait(0.4)
    assert warnings(caplog) == []


def test_the_heartbeat_follows_the_states_and_goes_on_in_long_ones(tmp_path, monkeypatch):
    reports = itertools.count(1)
    monkeypatch.setattr(heartbeats.time, "time", lambda: float(next(reports)))
    heartbeat = Heartbeat(epath.Path(tmp_path / "heartbeat.json"))

    def reported(count: int = 2) -> tuple:
        seen = heartbeat._time
        wait_until(lambda: heartbeat._time >= seen + count)  # the second report from now on is of the state now
        heartbeat.write(everything=True)
        record = json.loads((tmp_path / "heartbeat.json").read_text())
        times.append(record["time"])
        return record["step"], record["state"], record["steps"]

    times: list[float] = []
    with Watchdog(0, heartbeat, least=0.1) as watchdog:
        assert reported() == (0, "starting", 0)
        watchdog.locate(10, 100)
        with watchdog.state(TRAINING):
            watchdog.beat(11)
            wait_until(lambda: heartbeat._step == 11)
            assert reported(0) == (11, "training", 100)
            with watchdog.state("saving"):
                assert reported() == reported() == (11, "saving", 100)
        watchdog.end("failed", 1, "no space")
    assert reported(0) == (11, "failed", 100)
    assert times == sorted(set(times))
    record = json.loads((tmp_path / "heartbeat.json").read_text())
    assert (record["started"], record["exit_code"], record["failure"]) == (1.0, 1, "no space")


def test_the_heartbeat_of_a_step_that_hangs_grows_old(clock, tmp_path):
    heartbeat = Heartbeat(epath.Path(tmp_path / "heartbeat.json"))
    with Watchdog(0, heartbeat, least=0.3) as watchdog, watchdog.state(TRAINING):
        watchdog.beat(3)
        clock.wait(1.0)
        seen = heartbeat._time
        clock.wait(1000.0)
        assert heartbeat._time == seen
        watchdog.beat(4)
        clock.wait(1.0)
        assert heartbeat._time > seen


# `hang` waits without the interpreter's lock, `block` with it, as numpy does for a page of a mapped file.
SCRIPT = """
import ctypes, faulthandler, sys, threading, time
from bertjax.training.run.watchdog import Watchdog

def hang(): time.sleep(300)
def block(): ctypes.PyDLL(None).sleep(300)

start_timer, timer_runs = faulthandler.dump_traceback_later, threading.Event()

def start_and_note(*arguments, **options):
    start_timer(*arguments, **options)
    timer_runs.set()

faulthandler.dump_traceback_later = start_and_note

with Watchdog(float(sys.argv[1])) as watchdog:
    {}
print("it went on")
"""
IN_TIME = "time.sleep(0.05)"


def outcome(body: str, hang_timeout: float = 0.3) -> tuple[int, str, float]:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body), str(hang_timeout)], capture_output=True, text=True, timeout=240
    )
    return done.returncode, done.stderr + done.stdout, time.monotonic() - start


@pytest.mark.parametrize(
    "body, state, function",
    [
        ("hang()", "starting", "hang"),
        ("with watchdog.state('training'): watchdog.beat(7); hang()", "training", "hang"),
        ("with watchdog.state('saving'): hang()", "saving", "hang"),
        ("with watchdog.state('evaluating'): watchdog.beat(); hang()", "evaluating", "hang"),
        ("watchdog.end('finished', 0); hang()", "finished", "hang"),
    ],
)
def test_a_hang_in_any_state_ends_the_process_with_all_stacks(body, state, function):
    code, output, _ = outcome(body)
    assert code == 1
    assert f"in the state '{state}' at step {7 if state == 'training' else 0}; run the same command" in output
    assert f"in {function}\n" in output and "in _watch" in output and "it went on" not in output


def test_a_blocked_interpreter_ends_too():
    code, output, _ = outcome("with watchdog.state('training'): timer_runs.wait(); block()")
    assert code == 1
    assert "in block\n" in output and "it went on" not in output


@pytest.mark.parametrize(
    "body, hang_timeout",
    [
        # Each takes longer than its limit, which a busy machine does not exceed between two beats.
        ("with watchdog.state('starting', is_watched=False): time.sleep(4.5)", 1.0),
        ("with watchdog.state('training'): [(time.sleep(0.1), watchdog.beat(step)) for step in range(35)]", 3.0),
        ("with watchdog.state('saving'): [(time.sleep(0.1), watchdog.beat()) for _ in range(35)]", 1.0),
        ("time.sleep(1.0)", 0),
    ],
)
def test_progress_or_a_state_without_a_limit_does_not(body, hang_timeout):
    code, output, _ = outcome(body, hang_timeout)
    assert (code, output) == (0, "it went on\n")
