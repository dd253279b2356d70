"""The page on adding a hook: its code is run as it is printed. What a hook sees, and how a wrong one is refused."""

import itertools
import json
import re
import sys
from pathlib import Path

import pytest

from bertjax.runtime.errors import UserError
from bertjax.training.hooks.base import Hook
from bertjax.training.hooks.own import own_hooks
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


def test_the_hook_of_the_page_writes_its_file(flags, tmp_path, monkeypatch):
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "mylab").mkdir()
    (tmp_path / "mylab" / "norms.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    run, hook = tmp_path / "run", "--config.runtime.hooks=\"('mylab.norms:WordNorms',)\""
    assert hook in PAGE.read_text()
    assert runs.call(*flags, hook.replace('"', ""), f"--workdir={run}") == 0
    lines = [json.loads(line) for line in (run / "word_norms.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [50, 100] and all(line["norm"] > 0.0 for line in lines)
    [start] = [json.loads(line) for line in (run / "starts.jsonl").read_text().splitlines()]
    assert "mylab.norms" in json.dumps(start)
    monkeypatch.delitem(sys.modules, "mylab.norms")


def test_the_page_names_every_moment():
    assert re.findall(r"^\| `(on_\w+)\(", PAGE.read_text(), re.MULTILINE) == MOMENTS


def test_a_hook_sees_each_moment_in_order_and_leaves_the_run_as_it_is(flags, undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(Recording, "calls", [])
    assert runs.call(*flags, using(Recording), f"--workdir={tmp_path / 'run'}") == 0
    calls = Recording.calls
    assert (calls[0], calls[-1]) == (("on_start", 0), ("on_close", 100, None))
    assert [call[2] for call in calls if call[0] == "on_step"] == list(range(1, 101))
    assert [call[1:] for call in calls if call[0] == "on_chunk"] == [(step, step - 1) for step in range(1, 101)]
    assert [call[1] for call in calls if call[0] == "on_evaluation"] == [50, 100]
    assert [call[1] for call in calls if call[0] == "on_save"] == list(range(10, 101, 10))
    assert all(call[2]["totals"]["rows"] == 8 * call[1] for call in calls if call[0] == "on_save")
    assert not [call for call in calls if call[0] == "on_stop"]
    weights = [(folder / "export" / "model.safetensors").read_bytes() for folder in (tmp_path / "run", undisturbed)]
    assert weights[0] == weights[1]


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


def test_an_error_in_a_hook_ends_the_run_and_all_hooks_are_closed(flags, tmp_path, monkeypatch):
    monkeypatch.setattr(Recording, "calls", [])
    both = f"--config.runtime.hooks=('{__name__}:Failing', '{__name__}:Recording')"
    with pytest.raises(ZeroDivisionError, match="in a hook"):
        runs.call(*flags, both, f"--workdir={tmp_path / 'run'}")
    name, _, error = Recording.calls[-1]
    assert name == "on_close" and isinstance(error, ZeroDivisionError)


def test_wrong_hooks_are_one_line(refused):
    assert "runtime.hooks has 'log', which must be module:Class" in refused("--config.runtime.hooks=('log',)")
    assert "no class 'Missing'; did you mean" in refused(f"--config.runtime.hooks=('{__name__}:Missing',)")
    with pytest.raises(UserError, match="is not a subclass of Hook; derive it from bertjax.training.hooks.base.Hook"):
        own_hooks(["json:JSONDecoder"])
