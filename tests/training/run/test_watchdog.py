"""Signs of life: watchdog, heartbeat, failures and events."""

import contextlib
import errno
import json
import logging
import signal
import subprocess
import sys

import jax
import pytest
from etils import epath

from bertjax.config.config import Config
from bertjax.runtime.command_line import code_for
from bertjax.runtime.errors import Busy, RunFailed, Unavailable, UserError
from bertjax.runtime.storage import StorageError
from bertjax.training import start
from bertjax.training.run import notify
from bertjax.training.run import watchdog as watchdogs
from bertjax.training.run.notify import Notifier, end_of, is_refusal
from bertjax.training.run.watchdog import TRAINING, Failures, NotFinite, Watchdog
from bertjax.training.run.workdir import read_jsonl
from tests import runs
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
    clock, path = Clock(), epath.Path(tmp_path / "heartbeat.json")
    monkeypatch.setattr(watchdogs, "time", clock)
    watchdog = Watchdog(100, path)

    def reported() -> tuple:
        clock.now += 10
        watchdog.write()
        record = json.loads(path.read_text())
        return record["step"], record["state"], record["steps"], record["time"]

    assert reported() == (0, "starting", 0, 1010)
    watchdog.locate(10, 100)
    with watchdog.state(TRAINING):
        watchdog.beat(11)
        assert reported() == reported() == (11, "training", 100, 1010), "the time of the last progress"
        with watchdog.state("saving"):
            assert [reported(), reported()] == [(11, "saving", 100, 1040), (11, "saving", 100, 1050)]
    watchdog.end("failed", 1, "no space")
    watchdog.write()
    record = json.loads(path.read_text())
    assert (record["state"], record["exit_code"], record["failure"]) == ("failed", 1, "no space")
    assert (record["started"], record["time"], record["hang_timeout"]) == (1000.0, clock.now, 100)


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


def exit_code(folder, checkpoint: int, step: int, error: Exception) -> int:
    """The exit code of a start that fails."""
    return code_for(Failures(epath.Path(folder / "failures.jsonl"), checkpoint).judge(step, error))


def test_the_same_step_from_the_same_checkpoint_fails_again(tmp_path):
    failure = NotFinite("loss is not finite")
    assert exit_code(tmp_path, 10, 17, failure) == 1
    assert exit_code(tmp_path, 10, 17, failure) == 3
    assert exit_code(tmp_path, 10, 18, failure) == 1, "another step"
    assert exit_code(tmp_path, 20, 18, failure) == 1, "another checkpoint"
    assert exit_code(tmp_path, 20, 18, failure) == 3
    records = read_jsonl(epath.Path(tmp_path / "failures.jsonl"))
    assert [(record["checkpoint"], record["step"]) for record in records] == [
        (10, 17),
        (10, 17),
        (10, 18),
        (20, 18),
        (20, 18),
    ]
    assert {record["reason"] for record in records} == {"loss is not finite"}


@pytest.mark.parametrize(
    "error, code",
    [
        (Unavailable("503"), 75),
        (UserError("bad input"), 2),
        (RunFailed("another process"), 1),
        (OSError("disk"), 1),
        # What a chip that fails raises; a launcher may find another one.
        (jax.errors.JaxRuntimeError("INTERNAL: Core halted unexpectedly"), 1),
        (jax.errors.JaxRuntimeError("UNAVAILABLE: TPU worker is gone"), 1),
    ],
)
def test_what_may_pass_never_counts(tmp_path, error, code):
    assert [exit_code(tmp_path, 10, 17, error) for _ in range(3)] == [code] * 3
    assert not list(tmp_path.iterdir())


def test_a_record_that_cannot_be_written_does_not_hide_the_failure(tmp_path, caplog):
    failures = Failures(epath.Path(tmp_path / "failures.jsonl"), 10)
    (tmp_path / "failures.jsonl").mkdir()
    error = NotFinite("loss is not finite")
    assert failures.judge(17, error) is error
    assert "cannot be written" in caplog.text


@pytest.mark.slow
def test_a_run_that_fails_twice_ends_in_code_3(flags, tmp_path, capsys):
    """The first update is so large that no later loss is finite."""
    too_fast = ["--config.optimizer.learning_rate=1e30", "--config.optimizer.warmup_steps=0", f"--workdir={tmp_path}"]
    assert runs.call(*flags, *too_fast) == 1
    assert runs.call(*flags, *too_fast) == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: step 1 failed twice from checkpoint 0 (loss, ")
    assert runs.call(*flags, *too_fast, "--config.runtime.max_skipped=1") == 1, "step 3"


# It ends only when it is killed, and so does its child.
ENDLESS = "sh -c 'sleep 10000 & wait'"

RECORD = """
import json, os, sys
variables = {name: value for name, value in os.environ.items() if name.startswith("BERTJAX_")}
print(json.dumps([variables, json.load(sys.stdin)]), file=open(sys.argv[1], "a"))
"""


@pytest.fixture
def clock_of_notify(monkeypatch) -> Clock:
    """The clock of notifiers, which stands still."""
    clock_of_notify = Clock()
    monkeypatch.setattr(notify, "time", clock_of_notify)
    return clock_of_notify


@pytest.fixture
def patient(monkeypatch) -> None:
    """Let notifiers wait for a command however slow it is."""
    monkeypatch.setattr(notify, "_COMMAND_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(notify, "_CLOSING_SECONDS", LIMIT_SECONDS)


@pytest.fixture
def recorder(tmp_path, patient, monkeypatch):
    """The command line of a program that writes what it gets to `events`; it is waited for however slow it is."""
    monkeypatch.delenv("BERTJAX_TEST_PATIENCE", raising=False)  # it writes the variables of bertjax
    (tmp_path / "record.py").write_text(RECORD)
    return f"{sys.executable} '{tmp_path}/record.py' '{tmp_path}/events'"


def events(tmp_path) -> list:
    return [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]


@pytest.mark.parametrize(
    "error, end, is_of_start",
    [
        (Unavailable("503"), "stopped", False),
        (Busy("in use"), "stopped", True),
        (StorageError(errno.EIO, "Input/output error", "run"), "stopped", False),
        (KeyboardInterrupt(), "stopped", False),
        (StorageError(errno.ENOSPC, "No space left on device", "run"), "failed", False),
        (RunFailed("diverged"), "failed", False),
        (UserError("bad input"), "failed", True),
    ],
)
def test_what_the_same_command_may_continue_has_stopped(error, end, is_of_start):
    assert (end_of(error), is_refusal(error)) == (end, is_of_start)


@pytest.mark.parametrize(
    "command, seconds, warning",
    [
        ("/nowhere/program", LIMIT_SECONDS, "No such file or directory: '/nowhere/program'"),
        (f"{sys.executable} -c 'raise SystemExit(3)'", LIMIT_SECONDS, "it ended with exit code 3 at the event saved"),
        ("sh -c 'exec <&-; exit 4'", LIMIT_SECONDS, "it ended with exit code 4"),  # it does not read its input
        ("sh -c 'kill -9 $$'", LIMIT_SECONDS, "it ended with exit code -9"),
        (ENDLESS, 0.3, "it was killed after 0 s, at the event saved"),
    ],
)
def test_a_command_that_fails_is_reported_once(command, seconds, warning, patient, monkeypatch, caplog):
    monkeypatch.setattr(notify, "_COMMAND_SECONDS", seconds)
    with contextlib.closing(Notifier(command, "run")) as notifier:
        for step in range(3):
            notifier("saved", step)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert warning in record.getMessage() and record.getMessage().endswith("the run continues")


def test_a_command_that_hangs_delays_neither_events_nor_the_end(monkeypatch, caplog):
    monkeypatch.setattr(notify, "_CLOSING_SECONDS", 0.2)
    with contextlib.closing(Notifier(ENDLESS, "run")) as notifier:
        for step in range(1000):  # ten times as many as wait for it
            notifier("saved", step)
        wait_until(lambda: notifier._running)  # what has not started is not killed
        assert notifier._running.returncode is None, "the first command still runs, and all events are noted"
    assert "it has not handled the last 100 events; the event saved is dropped" in caplog.text
    notifier._thread.join(LIMIT_SECONDS)
    assert not notifier._thread.is_alive()
    assert notifier._running.returncode == -signal.SIGKILL, "it was not waited for, but killed, with its children"


def test_spikes_of_every_step_are_one_event_a_minute(recorder, clock_of_notify, tmp_path):
    with contextlib.closing(Notifier(recorder, "run")) as notifier:
        for clock_of_notify.now in (1000.0, 1030.0, 1059.0, 1060.0, 1061.0):
            notifier("spike", int(clock_of_notify.now))
        notifier("saved", 9)
    assert [(event["event"], event["step"]) for _, event in events(tmp_path)] == [
        ("spike", 1000),
        ("spike", 1060),
        ("saved", 9),
    ]


def test_a_quote_that_is_not_closed_is_bad_input():
    with pytest.raises(UserError, match=r"^--on-event=say 'it cannot be read \(No closing quotation\); quote it as "):
        Notifier("say 'it", "run")


@pytest.mark.parametrize(
    ("error", "event"), [(Unavailable("no answer"), "stopped"), (StorageError(28, "full"), "failed")]
)
def test_a_start_that_ends_while_it_takes_the_lock_is_an_event(error, event, recorder, tmp_path, monkeypatch):
    def claim(*_):
        raise error

    monkeypatch.setattr(start, "claim", claim)
    with pytest.raises(type(error)), start.opened(Config(), tmp_path / "run", False, False, recorder):
        pass
    assert [sent["event"] for _, sent in events(tmp_path)] == [event]
