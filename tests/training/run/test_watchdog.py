"""The watchdog: late steps are logged, and a run that hangs ends by itself, with the stacks of all threads."""

import json
import logging
import subprocess
import sys
import time

import pytest
from etils import epath

from bertjax.training.run.heartbeat import Heartbeat
from bertjax.training.run.watchdog import TRAINING, Watchdog


def beat(watchdog: Watchdog, times: int) -> None:
    for step in range(times):
        watchdog.beat(step)
        time.sleep(0.005)


def warnings(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_step_that_is_late_is_logged_once(caplog):
    with Watchdog(0, least=0.3) as watchdog, watchdog.state(TRAINING):
        beat(watchdog, 10)
        time.sleep(1.0)
        watchdog.beat(10)
        time.sleep(0.01)
    [warning] = warnings(caplog)
    assert warning.startswith("a step has taken ") and "the median is 0.0" in warning


def test_time_outside_of_steps_is_not_counted(caplog):
    with Watchdog(0, least=0.2) as watchdog, watchdog.state(TRAINING):
        beat(watchdog, 10)
        with watchdog.state("evaluating"):
            time.sleep(0.6)
        beat(watchdog, 3)
    assert warnings(caplog) == []


def test_the_first_steps_may_take_any_time(caplog):
    with Watchdog(0, least=0.1) as watchdog, watchdog.state(TRAINING):
        beat(watchdog, 3)
        time.sleep(0.4)
    assert warnings(caplog) == []


def test_the_heartbeat_follows_the_states_and_goes_on_in_long_ones(tmp_path):
    heartbeat = Heartbeat(epath.Path(tmp_path / "heartbeat.json"))

    def reported() -> tuple:
        time.sleep(0.1)
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
            assert reported() == (11, "training", 100)
            with watchdog.state("saving"):
                assert reported() == reported() == (11, "saving", 100)
            assert reported() == (11, "training", 100)
        watchdog.end("finished")
    assert reported() == (11, "finished", 100)
    assert times[:-1] == sorted(set(times[:-1]))


# `hang` waits without the interpreter's lock, `block` with it, as numpy does for a page of a mapped file.
SCRIPT = """
import ctypes, sys, time
from bertjax.training.run.watchdog import Watchdog

def hang(): time.sleep(30)
def block(): ctypes.PyDLL(None).sleep(30)

with Watchdog(float(sys.argv[1])) as watchdog:
    {}
print("it went on")
"""
IN_TIME = "time.sleep(0.05)"


def outcome(body: str, hang_timeout: float = 0.3) -> tuple[int, str, float]:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body), str(hang_timeout)], capture_output=True, text=True, timeout=25
    )
    return done.returncode, done.stderr + done.stdout, time.monotonic() - start


@pytest.mark.parametrize(
    "body, state, function",
    [
        ("hang()", "starting", "hang"),
        ("with watchdog.state('training'): watchdog.beat(7); hang()", "training", "hang"),
        ("with watchdog.state('saving'): hang()", "saving", "hang"),
        ("with watchdog.state('evaluating'): watchdog.beat(); hang()", "evaluating", "hang"),
        ("watchdog.end('finished'); hang()", "finished", "hang"),
    ],
)
def test_a_hang_in_any_state_ends_the_process_with_all_stacks(body, state, function):
    code, output, _ = outcome(body)
    assert code == 1
    assert f"in the state '{state}' at step {7 if state == 'training' else 0}; run the same command" in output
    assert f"in {function}\n" in output and "in _watch" in output and "it went on" not in output


def test_a_blocked_interpreter_ends_too():
    code, output, _ = outcome("with watchdog.state('training'): hang and time.sleep(0.2); block()")
    assert code == 1
    assert "in block\n" in output and "it went on" not in output


@pytest.mark.parametrize(
    "body, hang_timeout",
    [
        ("with watchdog.state('starting', is_watched=False): time.sleep(1.5)", 0.3),
        ("with watchdog.state('training'): [(time.sleep(0.2), watchdog.beat(step)) for step in range(6)]", 0.4),
        ("with watchdog.state('saving'): [(time.sleep(0.4), watchdog.beat()) for _ in range(4)]", 0.4),
        ("time.sleep(1.0)", 0),
    ],
)
def test_progress_or_a_state_without_a_limit_does_not(body, hang_timeout):
    code, output, _ = outcome(body, hang_timeout)
    assert (code, output) == (0, "it went on\n")
