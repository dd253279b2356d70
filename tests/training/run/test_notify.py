"""A command at the events of a run: what it gets, and that nothing it does reaches the run."""

import errno
import json
import logging
import sys
import time

import pytest

from bertjax.errors import Unavailable, UserError
from bertjax.storage import StorageError
from bertjax.training.run import notify
from bertjax.training.run.notify import Notifier, end_of
from tests.waiting import wait_until

RECORD = """
import json, os, sys
variables = {name: value for name, value in os.environ.items() if name.startswith("BERTJAX_")}
print(json.dumps([variables, json.load(sys.stdin)]), file=open(sys.argv[1], "a"))
"""


@pytest.fixture
def recorder(tmp_path, monkeypatch):
    """The command line of a program that writes what it gets to `events`; it is waited for however slow it is."""
    monkeypatch.setattr(notify, "_CLOSING_SECONDS", 300.0)
    (tmp_path / "record.py").write_text(RECORD)
    return f"{sys.executable} '{tmp_path}/record.py' '{tmp_path}/events'"


def events(tmp_path) -> list:
    return [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]


def test_the_command_gets_each_event_in_order(recorder, tmp_path, caplog):
    with Notifier(recorder, "gs://bucket/run") as notifier:
        notifier("saved", 10)
        notifier("spike", 12, name="mlm_loss")
        notifier("finished")
    (first_variables, first), (_, second), (last_variables, last) = events(tmp_path)
    assert first_variables == {"BERTJAX_EVENT": "saved", "BERTJAX_STEP": "10", "BERTJAX_WORKDIR": "gs://bucket/run"}
    assert abs(first.pop("time") - time.time()) < 60.0
    assert first == {"event": "saved", "step": 10, "workdir": "gs://bucket/run"}
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
        ("/nowhere/program", 60.0, "No such file or directory: '/nowhere/program'"),
        (f"{sys.executable} -c 'raise SystemExit(3)'", 60.0, "it ended with exit code 3 at the event saved"),
        ("sh -c 'exec <&-; exit 4'", 60.0, "it ended with exit code 4"),  # it does not read its input
        ("sh -c 'kill -9 $$'", 60.0, "it ended with exit code -9"),
        ("sh -c 'sleep 60 & wait'", 0.3, "it was killed after 0 s, at the event saved"),
    ],
)
def test_a_command_that_fails_is_reported_once(command, seconds, warning, monkeypatch, caplog):
    monkeypatch.setattr(notify, "_COMMAND_SECONDS", seconds)
    with Notifier(command, "run") as notifier:
        for step in range(3):
            notifier("saved", step)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert warning in record.getMessage() and record.getMessage().endswith("the run continues")


def test_a_command_that_hangs_delays_neither_events_nor_the_end(monkeypatch, caplog):
    monkeypatch.setattr(notify, "_CLOSING_SECONDS", 0.2)
    start = time.monotonic()
    with Notifier("sh -c 'sleep 600 & wait'", "run") as notifier:
        for step in range(1000):  # ten times as many as wait for it
            notifier("saved", step)
        noted = time.monotonic() - start
        wait_until(lambda: notifier._running)  # what has not started is not killed
    assert noted < 5.0 and time.monotonic() - start < 30.0
    assert "it has not handled the last 100 events; the event saved is dropped" in caplog.text
    notifier._thread.join(300.0)  # killed, with its children
    assert not notifier._thread.is_alive()


def test_spikes_of_every_step_are_one_event(recorder, tmp_path):
    with Notifier(recorder, "run") as notifier:
        for step in range(5):
            notifier("spike", step)
            notifier("saved", step)
    assert [event["event"] for _, event in events(tmp_path)] == ["spike", *["saved"] * 5]


def test_without_a_command_nothing_runs():
    with Notifier("", "run") as notifier:
        notifier("saved", 10)
        assert not notifier._thread.is_alive()


def test_a_quote_that_is_not_closed_is_bad_input():
    with pytest.raises(UserError, match=r"^--on-event=say 'it cannot be read \(No closing quotation\); quote it as "):
        Notifier("say 'it", "run")
