"""`bertjax COMMAND`: the list of commands, their help, and what is not one."""

import importlib
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from bertjax import __main__ as entry
from bertjax import cli
from bertjax.runtime import command_line

COMMANDS = sorted(name for commands in entry.COMMANDS.values() for name in commands)


def test_the_list_has_every_command(capsys):
    modules = {path.stem: path.read_text() for path in Path(cli.__file__).parent.glob("*.py")}
    assert sorted(name for name, text in modules.items() if "\ndef main(" in text) == COMMANDS
    assert entry.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_two_commands_that_can_be_typed(name, capsys):
    command = importlib.import_module(f"bertjax.cli.{name}")
    with pytest.raises(SystemExit) as ended:
        command.main(["--help"])
    assert ended.value.code == 0
    spelled = "bertjax.train" if name == "train" else f"bertjax {name}"
    usage, *examples = capsys.readouterr().out.split(f"python -m {spelled}")
    assert usage.startswith("usage: ") and len(examples) >= 3  # the usage, and two examples


@pytest.mark.parametrize(
    "typed, complaint",
    [
        ("evalute", "'evalute' is not a command; did you mean python -m bertjax evaluate?"),
        ("xyz", "'xyz' is not a command; python -m bertjax --help lists the commands"),
        ("--config=tiny", "a command comes before --config=tiny, as in python -m bertjax.train --config=tiny"),
        ("", "the command is empty; remove the argument, or set the variable that it comes from"),
    ],
)
def test_another_word_is_refused_in_one_line(typed, complaint, capsys, monkeypatch):
    monkeypatch.setattr(command_line, "_python", lambda: "python")  # as the shell finds this interpreter
    assert entry.main([typed]) == 2
    assert capsys.readouterr().err == f"error: {complaint}\n"


def test_help_of_a_command_has_two_spellings(capsys):
    assert entry.main(["help", "status"]) == 0
    assert capsys.readouterr().out.startswith("usage: python -m bertjax status ")


def test_a_command_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bertjax", "status", "nowhere"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(entry.__file__, run_name="__main__")
    assert ended.value.code == 2 and "nowhere" in capsys.readouterr().err.splitlines()[0]


def test_training_has_an_entry_of_its_own(tmp_path):
    """`python -m bertjax.train`, in a process of its own, which it ends."""
    command = [sys.executable, "-m", "bertjax.train", "--config=nowhere.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "nowhere" in done.stderr.splitlines()[0]
