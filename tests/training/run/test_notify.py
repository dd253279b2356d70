"""A command at the events of a run: what it gets, and that nothing it does reaches the run."""

import errno
import json
import logging
import signal
import sys

import pytest

from bertjax.runtime.errors import Unavailable, UserError
from bertjax.runtime.storage import StorageError
from bertjax.training.run import notify
from bertjax.training.run.notify import Notifier, end_of
from tests.waiting import LIMIT_SECONDS, Clock, wait_until

# It ends only when it is killed, and so does its child.
ENDLESS = "sh -c 'sleep 10000 & wait'"

RECORD = """
import json, os, sys
variables = {name: value for name, value in os.environ.items() if name.startswith("BERTJAX_")}
print(json.dumps([variables, json.load(sys.stdin)]), file=open(sys.argv[1], "a"))
"""


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """The clock of notifiers, which stands still."""
    clock = Clock()
    monkeypatch.setattr(notify, "time", clock)
    return clock


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


def test_the_command_gets_each_event_in_order(recorder, clock, tmp_path, caplog):
    with Notifier(recorder, "gs://bucket/run") as notifier:
        notifier("saved", 10)
        notifier("spike", 12, name="mlm_loss")
        notifier("finished")
    (first_variables, first), (_, second), (last_variables, last) = events(tmp_path)
    assert first_variables == {"BERTJAX_EVENT": "saved", "BERTJAX_STEP": "10", "BERTJAX_WORKDIR": "gs://bucket/run"}
    assert first == {"event": "saved", "step": 10, "workdir": "gs://bucket/run", "time": clock.now}
    assert (second["event"], second["step"], second["name"]) == ("spike", 12, "mlm_loss")
    assert (last["event"], last["step"], last_variables["BERTJAX_STEP"]) == ("finished", 12, "12")
    assert not caplog.records


def test_a_run_that_raises_has_failed(recorder, tmp_path):
    with pytest.raises(ValueError), Notifier(recorder, "run"):
        raise ValueError("the first line\nthe second")
    [(_, failed)] = events(tmp_path)
    assert (failed["event"], failed["message"]) == ("failed", "the first line")


@pytest.mark.parametrize(
    "error, end",
    [
        (Unavailable("503"), "stopped"),
        (StorageError(errno.EIO, "Input/output error", "run"), "stopped"),
        (KeyboardInterrupt(), "stopped"),
        (StorageError(errno.ENOSPC, "No space left on device", "run"), "failed"),
        (UserError("bad input"), "failed"),
    ],
)
def test_what_the_same_command_may_continue_has_stopped(error, end):
    assert end_of(error) == end


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
    with Notifier(command, "run") as notifier:
        for step in range(3):
            notifier("saved", step)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert warning in record.getMessage() and record.getMessage().endswith("the run continues")


def test_a_command_that_hangs_delays_neither_events_nor_the_end(monkeypatch, caplog):
    monkeypatch.setattr(notify, "_CLOSING_SECONDS", 0.2)
    with Notifier(ENDLESS, "run") as notifier:
        for step in range(1000):  # ten times as many as wait for it
            notifier("saved", step)
        wait_until(lambda: notifier._running)  # what has not started is not killed
        assert notifier._running.returncode is None, "the first command still runs, and all events are noted"
    assert "it has not handled the last 100 events; the event saved is dropped" in caplog.text
    notifier._thread.join(LIMIT_SECONDS)
    assert not notifier._thread.is_alive()
    assert notifier._running.returncode == -signal.SIGKILL, "it was not waited for, but killed, with its children"


def test_spikes_of_every_step_are_one_event_a_minute(recorder, clock, tmp_path):
    with Notifier(recorder, "run") as notifier:
        for clock.now in (1000.0, 1030.0, 1059.0, 1060.0, 1061.0):
            notifier("spike", int(clock.now))
        notifier("saved", 9)
    assert [(event["event"], event["step"]) for _, event in events(tmp_path)] == [
        ("spike", 1000),
        ("spike", 1060),
        ("saved", 9),
    ]


def test_a_quote_that_is_not_closed_is_bad_input():
    with pytest.raises(UserError, match=r"^--on-event=say 'it cannot be read \(No closing quotation\); quote it as "):
        Notifier("say 'it", "run")
