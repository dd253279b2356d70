"""The command line of all commands."""

import dataclasses
import importlib
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from bertjax import __main__ as entry
from bertjax import cli
from bertjax.cli.train_output import ONNX, SENTENCE_TRANSFORMERS, TRANSFORMERS, destinations_of
from bertjax.config import config_file
from bertjax.config.config import to_dict
from bertjax.config.export import Export, exported
from bertjax.config.opening import SavedModel
from bertjax.config.private_paths import without_teachers
from bertjax.interop import huggingface
from bertjax.objectives.wrapper import rewrapped
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError
from bertjax.training.setup import make_setups

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
    """`python -m bertjax.train`, in a process of its own, which it ends; not on a CPU, for which it would restart."""
    command = [sys.executable, "-m", "bertjax.train", "--config=nowhere.py", "--platform=tpu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "nowhere" in done.stderr.splitlines()[0]


def test_a_signal_that_ends_the_process_prints_the_stack():
    """As SIGBUS does, if a page of a mapped file has gone."""
    ended = "command_line.exit_code_of(lambda: os.kill(os.getpid(), signal.SIGBUS))"
    code = f"import os, signal; from bertjax.runtime import command_line; {ended}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in done.stderr and "in exit_code_of" in done.stderr


def ended(body: str, stdout, closing: str = "", **environment: str) -> tuple[int, str]:
    """Run a command whose entry point has this body; return its exit code and what it printed on stderr.

    Args:
      closing: redirection of a shell that closes a stream, such as `>&-`.
    """
    code = f"import argparse, os, sys\nfrom bertjax.runtime import command_line, errors\ndef main():\n    {body}\n"
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", f"{code}sys.exit(command_line.exit_code_of(main))"]
    command = ["bash", "-c", f'exec "$@" {closing}', "bash", *command]
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, env=environ | environment, text=True)
    return done.returncode, done.stderr


@pytest.fixture
def unread():
    """A pipe whose reader has left, as in `... | head -1`."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.mark.parametrize(
    "body",
    [
        "print('a line')",
        "print('a line', flush=True)",
        "argparse.ArgumentParser().parse_args(['--help'])",
        "from rich.console import Console; Console().print('a table')",
    ],
)
def test_a_command_whose_reader_has_left_ends_quietly(body, unread):
    """The exit code is that of SIGPIPE, as of other commands."""
    assert ended(body, unread) == (command_line.UNREAD, "")


@pytest.mark.parametrize(
    "raised, code",
    [
        ("UserError('bad')", command_line.BAD_INPUT),
        ("FailedAgain('bad')", command_line.FAILED_AGAIN),
        ("Unavailable('bad')", command_line.STOPPED),
    ],
)
def test_an_error_is_printed_and_keeps_its_code_where_nobody_reads_the_output(raised, code, unread):
    assert ended(f"print('a line'); raise errors.{raised}", unread) == (code, "error: bad\n")


def test_another_broken_pipe_is_an_error():
    code, error = ended("raise BrokenPipeError(32, 'Broken pipe')", subprocess.PIPE)
    assert code == command_line.FAILED and error.startswith("error: [Errno 32] Broken pipe; ")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_an_output_that_cannot_be_written_is_one_line():
    with open("/dev/full", "w") as full:
        code, error = ended("print('a line')", full)
    assert code == command_line.FAILED and "No space left on device" in error and error.count("\n") == 1


@pytest.mark.parametrize("closing", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("ending, code", [("pass", 0), ("raise errors.UserError('bad')", command_line.BAD_INPUT)])
def test_a_stream_that_is_closed_changes_nothing(ending, code, closing):
    body = (
        "print('note', file=sys.stderr, flush=True); text = b'' if sys.stdin.isatty() else sys.stdin.buffer.read()\n"
        "    with command_line.output('') as file: file.write(b'line' + text)\n"
        "    with open(os.devnull) as data: assert data.fileno() > 2, 'libraries write errors to 2'\n"
        f"    {ending}"
    )
    expected = "" if "2>" in closing else "note\n" + "error: bad\n" * bool(code)
    assert ended(body, subprocess.DEVNULL, closing) == (code, expected)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_terminal_without_the_letters_shows_escapes(stream):
    body = f"print('\uae00', file=sys.{stream})"
    assert ended(body, subprocess.DEVNULL, PYTHONIOENCODING="latin-1") == (0, "\\uae00\n" * (stream == "stderr"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_errors_that_cannot_be_printed_change_no_result(tmp_path):
    for body, code in (("print('a line', file=sys.stderr)", 0), ("raise errors.UserError('bad')", 2)):
        with open(tmp_path / "out", "w") as out:
            assert ended(f"print('result'); {body}", out, "2>/dev/full") == (code, "")
        assert (tmp_path / "out").read_text() == "result\n"


LEFT_TO_RIGHT = {ONNX: "model.direction=left_to_right", TRANSFORMERS: "no head 'clm'"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe, overrides, refused",
    [
        ("finetune/classify:cls", [], {}),
        ("finetune/classify:regression", ["tasks.classify.objective.pooling=cls"], {}),
        (
            "finetune/classify",
            [],
            {TRANSFORMERS: "its classes have no objective.pooling=mean; set --config.tasks.clas"},
        ),
        ("finetune/few", [], {TRANSFORMERS: "set --config.tasks.classify.objective.objective.pooling=cls"}),
        ("finetune/few:cls", [], {}),
        ("finetune/ner", [], {}),
        ("finetune/classify:cls", ["lora.rank=2"], {}),
        ("finetune/classify:cls", ["model.direction=left_to_right"], LEFT_TO_RIGHT),
    ],
)
def test_destinations_are_those_of_the_converters(undisturbed, tmp_path, recipe, overrides, refused):
    source = undisturbed / "export"
    config = config_file.load(recipe, [f"init_from={source}", *overrides])
    objective, classes = config.task.objective, ("no", "yes")
    if config.task.has_classes:
        objective = rewrapped(objective, lambda inner: dataclasses.replace(inner, classes=classes))
    tasks = {config.task_name: dataclasses.replace(config.task, objective=objective)}
    config, tokenizer = dataclasses.replace(config, tasks=tasks), SavedModel(source).tokenizer
    setup = make_setups(config, tokenizer.vocab_size)[-1]
    reasons = destinations_of(setup, tokenizer)
    assert {name for name, reason in reasons.items() if reason} == set(refused)
    assert all(refused[name] in reasons[name] for name in refused)
    shapes = exported(jax.eval_shape(setup.model_params, setup.shapes["params"], 0))
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)
    model = Export(without_teachers(to_dict(config)), setup.encoder, params, tokenizer, {}, {})
    if SENTENCE_TRANSFORMERS in reasons:
        huggingface.write(tmp_path / "hf", model)
        assert (tmp_path / "hf" / "modules.json").exists()
    elif reasons[TRANSFORMERS]:
        with pytest.raises(UserError):
            huggingface.write(tmp_path / "hf", model)
    else:
        huggingface.write(tmp_path / "hf", model)
