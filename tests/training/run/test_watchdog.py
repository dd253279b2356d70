"""The watchdog: late steps are logged, and a run that hangs ends by itself, with the stacks of all threads."""

import itertools
import json
import logging
import subprocess
import sys

import pytest
from etils import epath

from bertjax.training.run import heartbeat as heartbeats
from bertjax.training.run import watchdog as watchdogs
from bertjax.training.run.heartbeat import Heartbeat
from bertjax.training.run.watchdog import TRAINING, Watchdog
from tests.training.run.watched_clock import WatchedClock
from tests.waiting import LIMIT_SECONDS, Clock, wait_until


@pytest.fixture
def clock(monkeypatch) -> WatchedClock:
    clock = WatchedClock()
    monkeypatch.setattr(watchdogs, "time", clock)
    return clock


def beat(watchdog: Watchdog, clock: WatchedClock, times: int) -> None:
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


def test_the_heartbeat_follows_the_states_and_goes_on_in_long_ones(tmp_path, monkeypatch):
    reports, clock = itertools.count(1), Clock()
    clock.time = lambda: float(next(reports))
    monkeypatch.setattr(heartbeats, "time", clock)
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


# In a process of its own, because the watchdog ends it. Its clock stands still unless the script sets it, and the
# watchdog ticks every 0.03 s. `hang` waits without the interpreter's lock, `block` with it, as numpy does for a page
# of a mapped file. `timer` is what the watchdog has set faulthandler's timer to, which really runs only in `block`.
SCRIPT = """
import ctypes, faulthandler, sys, threading, time
from bertjax.training.run import watchdog as watchdogs
from tests.training.run.watched_clock import WatchedClock

start_timer, timer, is_blocking, timer_runs = faulthandler.dump_traceback_later, [], False, threading.Event()

def set_timer(seconds, **options):
    timer.append(seconds)
    if is_blocking:
        start_timer(0.1, **options)
        timer_runs.set()

def hang():
    clock.now += 1e9
    time.sleep(3600)

def block():
    global is_blocking
    is_blocking = True
    timer_runs.wait()
    ctypes.PyDLL(None).sleep(3600)

faulthandler.dump_traceback_later = set_timer
faulthandler.cancel_dump_traceback_later = lambda: timer.append(None)
clock = watchdogs.time = WatchedClock()

with watchdogs.Watchdog(float(sys.argv[1]), least=0.3) as watchdog:
    {}
print("it went on")
"""
# The timer of faulthandler has ten ticks more than what is left of a limit.
TIMER = "clock.wait(0.9e6); assert abs(timer[-1] - {:.1f}) < 0.01"


def outcome(body: str, hang_timeout: float = 1e6) -> tuple[int, str]:
    """Return the exit code and the output of a process under a watchdog; no test takes as long as its limit."""
    command = [sys.executable, "-c", SCRIPT.format(body), str(hang_timeout)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    return done.returncode, done.stderr + done.stdout


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
    code, output = outcome(body)
    assert code == 1
    assert f"in the state '{state}' at step {7 if state == 'training' else 0}; run the same command" in output
    assert f"in {function}\n" in output and "in _watch" in output and "it went on" not in output


def test_a_blocked_interpreter_ends_too():
    code, output = outcome("with watchdog.state('training'): block()")
    assert code == 1
    assert "in block\n" in output and "it went on" not in output


@pytest.mark.parametrize(
    "body, hang_timeout",
    [
        ("with watchdog.state('starting', is_watched=False): clock.wait(1e9); assert timer[-1] is None", 1e6),
        # A step may take as long as the limit, everything else three times as long.
        (
            "with watchdog.state('training'): [(clock.wait(0.9e6), watchdog.beat(step)) for step in range(3)]; "
            + TIMER.format(1e6 - 0.9e6 + 0.3),
            1e6,
        ),
        (
            "with watchdog.state('saving'): [(clock.wait(2.9e6), watchdog.beat()) for _ in range(3)]; "
            + TIMER.format(3e6 - 0.9e6 + 0.3),
            1e6,
        ),
        ("clock.wait(1e9); assert timer[-1] is None", 0),
    ],
)
def test_progress_or_a_state_without_a_limit_does_not(body, hang_timeout):
    assert outcome(body, hang_timeout) == (0, "it went on\n")
