"""Trackers: the real ones, resumed and read back, and what one that fails can do to a run."""

import importlib.util
import json
import os
import subprocess
import sys
import threading
import types

import pytest
from etils import epath

from bertjax.runtime.errors import UserError
from bertjax.training.run import trackers, writer
from bertjax.training.run.trackers import Tracker, Tracking, check_trackers
from bertjax.training.run.workdir import Workdir
from tests.waiting import LIMIT_SECONDS, wait_until


class Recording(Tracker):
    """Keeps what it gets; raises, or waits, if it should."""

    calls: list = []
    fails = waits = False
    may_write = threading.Event()

    def start(self, run):
        self.calls.append(("start", run.name, run.id))
        return run.id or "first"

    def write(self, step, scalars):
        if self.fails:
            raise ConnectionError("no network")
        if self.waits:
            assert self.may_write.wait(LIMIT_SECONDS)
        self.calls.append((step, scalars))

    def close(self):
        self.calls.append("close")


KIND = f"{__name__}:Recording"


@pytest.fixture
def track(tmp_path, monkeypatch):
    for name, value in (("calls", []), ("fails", False), ("waits", False), ("may_write", threading.Event())):
        monkeypatch.setattr(Recording, name, value)

    def call(*steps: int, skip_rows=()) -> None:
        with Tracking(KIND, Workdir(epath.Path(tmp_path / "run")), {"runtime": {"skip_rows": skip_rows}}) as tracker:
            for step in steps:
                tracker.add(step, {"loss": 1.0 / step, "odd": float("inf")})

    monkeypatch.setattr(writer, "_SECONDS_AT_THE_END", LIMIT_SECONDS)
    (tmp_path / "run").mkdir()
    return call


def test_a_resumed_run_has_the_same_id_and_no_step_twice(track):
    track(1, 2)
    track(2, 3)
    assert Recording.calls == [
        ("start", "run", ""),
        (1, {"loss": 1.0}),
        (2, {"loss": 0.5}),
        "close",
        ("start", "run", "first"),
        (3, {"loss": 1.0 / 3}),
        "close",
    ]


def test_steps_that_are_trained_again_on_other_rows_are_a_new_run(track):
    track(1, 2, 3)
    track(4, skip_rows=[[8, 9]])  # later steps: nothing is trained again
    track(2, 3, skip_rows=[[1, 2], [8, 9]])
    track(4, skip_rows=[[1, 2], [8, 9]])
    starts = [call for call in Recording.calls if call[0] == "start"]
    assert [run_id for _, _, run_id in starts] == ["", "first", "", "first"]
    assert [call[0] for call in Recording.calls if isinstance(call[0], int)] == [1, 2, 3, 4, 2, 3, 4]


def test_steps_are_passed_on_at_once(track, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "time", types.SimpleNamespace(monotonic=lambda: 0.0))  # nothing is due later
    with Tracking(KIND, Workdir(epath.Path(tmp_path / "run")), {"runtime": {"skip_rows": ()}}) as tracker:
        for step in (1, 2):
            tracker.add(step, {})
            wait_until(lambda step=step: (step, {}) in Recording.calls)


def test_a_full_queue_drops_the_oldest_only(track, tmp_path, monkeypatch):
    """Steps arrive while one is written: it is then no longer in the queue, whose next step must not go with it."""
    monkeypatch.setattr(trackers, "_MOST_WAITING", 2)
    tracker = Tracking(KIND, Workdir(epath.Path(tmp_path / "run")), {"runtime": {"skip_rows": ()}})
    tracker.add(1, {})
    tracker.add(2, {})
    arriving = iter([3])
    monkeypatch.setattr(Recording, "write", lambda self, step, _: [self.calls.append(step), *map(add, arriving)])
    add = lambda step: tracker.add(step, {})  # noqa: E731
    tracker.write()
    assert Recording.calls == [("start", "run", ""), 1, 2, 3]


def test_a_tracker_that_fails_is_a_warning_and_gets_its_steps_later(track, caplog):
    Recording.fails = True
    track(1)
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "no network" in caplog.text
    Recording.fails = False
    track(2)
    assert (2, {"loss": 0.5}) in Recording.calls


def test_unknown_trackers_and_missing_packages_are_one_line(monkeypatch):
    with pytest.raises(UserError, match="^runtime.trackers.kind='wandbb' is unknown; choose one of wandb, mlflow, tr"):
        check_trackers(["wandbb"])
    check_trackers([KIND])
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="'wandb', and wandb is not installed; pip install wandb$"):
        check_trackers(["wandb"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wandb", "mlflow", "trackio"])
def test_real_trackers_resume_one_run(kind, tmp_path):
    if importlib.util.find_spec(kind) is None:
        pytest.skip(f"{kind} is not installed; pip install -e '.[trackers]'")
    for action in ("track", "read"):
        command = [sys.executable, "-m", "tests.training.run.tracked_twice", action, kind, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=os.environ)
        assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["runs"] == 1 and found["id"] == found["note"]["id"] and found["note"]["step"] == 3
    assert [step for step, _ in found["steps"]] == [1, 2, 3]
    assert [value for _, value in found["steps"]] == pytest.approx([10.0, 5.0, 10.0 / 3])
