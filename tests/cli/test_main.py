"""`bertjax COMMAND`: the list of commands, their help, and what is not one."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from bertjax import __main__ as entry
from bertjax import cli

COMMANDS = sorted(name for commands in entry.COMMANDS.values() for name in commands)


def test_the_list_has_every_command(capsys):
    files = sorted(path.stem for path in Path(cli.__file__).parent.glob("*.py") if path.stem != "__init__")
    assert files == COMMANDS
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
    "typed, hint", [("evalute", "did you mean `bertjax evaluate`[?]"), ("xyz", "`bertjax --help` lists the commands")]
)
def test_another_word_is_refused_in_one_line(typed, hint, capsys):
    assert entry.main([typed]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {typed!r} is not a command; ")
    assert line.endswith(hint.replace("[?]", "?"))


def test_both_spellings_run_a_command(tmp_path):
    """The console script calls `main`; `python -m bertjax.train` is the documented entry to training."""
    for program in (["bertjax", "status", "nowhere"], ["bertjax.train", "--config=nowhere.py"]):
        done = subprocess.run([sys.executable, "-m", *program], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and "nowhere" in done.stderr.splitlines()[0]
