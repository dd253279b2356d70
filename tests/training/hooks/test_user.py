"""The page on adding a hook: its code is run as it is printed. What a hook sees, and how a wrong one is refused."""

import itertools
import json
import re
from pathlib import Path

import pytest

from bertjax.runtime.errors import UserError
from bertjax.training.hooks.base import Hook
from bertjax.training.hooks.default import user_hooks
from tests import runs

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "adding_a_hook.md"
MOMENTS = [name for name in vars(Hook) if name.startswith("on_")]


class Recording(Hook):
    """Notes each moment."""

    calls: list[tuple] = []

    def __getattribute__(self, name: str):
        if name not in MOMENTS:
            return super().__getattribute__(name)
        return lambda run, *arguments: Recording.calls.append((name, run.step, *arguments))


class Failing(Hook):
    def on_step(self, run, step, metrics):
        if step == 7:
            raise ZeroDivisionError("in a hook")


def using(hook: type[Hook]) -> str:
    return f"--config.runtime.hooks=('{__name__}:{hook.__name__}',)"


def test_the_page_names_every_moment():
    assert re.findall(r"^\| `(on_\w+)\(", PAGE.read_text(), re.MULTILINE) == MOMENTS


@pytest.mark.slow
def test_a_hook_sees_each_moment_in_order_and_leaves_the_run_as_it_is(flags, undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(Recording, "calls", [])
    assert runs.call(*flags, using(Recording), f"--workdir={tmp_path / 'run'}") == 0
    calls = Recording.calls
    assert (calls[:2], calls[-1]) == ([("on_start", 0), ("on_ready", 0)], ("on_close", 100, None))
    assert [call[2] for call in calls if call[0] == "on_step"] == list(range(1, 101))
    assert [call[1:] for call in calls if call[0] == "on_chunk"] == [(step, step - 1) for step in range(1, 101)]
    assert [call[1] for call in calls if call[0] == "on_evaluation"] == [50, 100]
    assert [call[1] for call in calls if call[0] == "on_save"] == list(range(10, 101, 10))
    assert not [call for call in calls if call[0] == "on_stop"]
    weights = [(folder / "export" / "model.safetensors").read_bytes() for folder in (tmp_path / "run", undisturbed)]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_a_hook_sees_a_stop_and_may_differ_at_the_next_start(flags, tmp_path, monkeypatch):
    monkeypatch.setattr(Recording, "calls", [])
    workdir = tmp_path / "run"
    steps = itertools.count(1)
    assert not runs.train_until([*flags, using(Recording)], workdir, lambda: next(steps) == 25).finished
    assert [call for call in Recording.calls if call[0] in ("on_stop", "on_close")] == [
        ("on_stop", 25),
        ("on_close", 25, None),
    ]
    assert runs.call(*flags, f"--workdir={workdir}") == 0


class ClosesBadly(Recording):
    """Its error must hide no other one."""

    def __getattribute__(self, name: str):
        return self.fail if name == "on_close" else super().__getattribute__(name)

    def fail(self, run, error):
        Recording.calls.append(("closes badly", run.step, error))
        raise AttributeError("from on_close")


def test_an_error_in_a_hook_ends_the_run_and_all_hooks_are_closed(flags, tmp_path, monkeypatch):
    monkeypatch.setattr(Recording, "calls", [])
    names = ", ".join(f"'{__name__}:{hook.__name__}'" for hook in (Failing, ClosesBadly, Recording))
    workdir = tmp_path / "run"
    with pytest.raises(ZeroDivisionError, match="in a hook"):
        runs.call(*flags, f"--config.runtime.hooks=({names})", f"--workdir={workdir}")
    (first, _, _), (name, _, error) = Recording.calls[-2:]
    assert (first, name) == ("closes badly", "on_close") and isinstance(error, ZeroDivisionError)
    [failure] = runs.records(workdir / "failures.jsonl")
    assert failure["step"] == 7


@pytest.mark.slow
def test_an_error_at_the_end_is_raised_after_the_export(flags, tmp_path):
    workdir = tmp_path / "run"
    with pytest.raises(AttributeError, match="from on_close"):
        runs.call(*flags, using(ClosesBadly), f"--workdir={workdir}")
    assert (workdir / "export" / "model.safetensors").exists()
    assert json.loads((workdir / "summary.json").read_text())["finished"]


def test_a_damaged_file_of_failures_refuses_a_start_before_it_is_recorded(flags, tmp_path, capsys):
    workdir, steps = tmp_path / "run", itertools.count(1)
    assert not runs.train_until(flags, workdir, lambda: next(steps) == 25).finished
    starts = (workdir / "starts.jsonl").read_bytes()
    (workdir / "failures.jsonl").write_text("damaged\n")
    assert runs.call(*flags, f"--workdir={workdir}") == 2
    assert "failures.jsonl:1 is damaged" in capsys.readouterr().err
    assert (workdir / "starts.jsonl").read_bytes() == starts


class NeedsArguments(Hook):
    def __init__(self, path):
        self.path = path


def test_wrong_hooks_are_one_line(refused):
    assert "runtime.hooks has 'log', which must be module:Class" in refused("--config.runtime.hooks=('log',)")
    line = refused(f"--config.runtime.hooks=('{__name__}:Missing',)")
    assert f"cannot be used: {__name__} has no class 'Missing'" in line
    assert "cannot be made without arguments" in refused(using(NeedsArguments))
    with pytest.raises(UserError, match="runtime.hooks='nowhere.mod:X' cannot be imported"):
        user_hooks(["nowhere.mod:X"])


def test_names_in_the_metadata_of_a_checkpoint_are_not_taken(flags, tmp_path, capsys):
    assert runs.call(*flags, using(Taking), f"--workdir={tmp_path / 'run'}") == 2
    assert "Taking.on_save gives 'totals', which another hook gives; choose another name" in capsys.readouterr().err


class Taking(Hook):
    def on_save(self, run, meta):
        meta["totals"] = {}
