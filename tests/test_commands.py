"""The commands in bertjax's messages exist."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from bertjax import cli
from bertjax.cli import command


def test_the_shell_runs_it(monkeypatch, tmp_path):
    shell = command("prepare", "--help", "a b").replace(" 'a b'", "")
    assert subprocess.run(shell, shell=True, capture_output=True).returncode == 0
    assert command("evaluate", "runs/a b").endswith(" -m bertjax.evaluate 'runs/a b'")


def test_the_name_is_as_short_as_the_shell_allows(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    Path(sys.executable).touch(mode=0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    assert command("train").split()[0] == sys.executable
    monkeypatch.chdir(tmp_path)
    assert command("train") == ".venv/bin/python -m bertjax.train"
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    assert command("train") == "python -m bertjax.train"


def test_a_signal_that_ends_the_process_prints_the_stack():
    """As SIGBUS does, if a page of a mapped file has gone."""
    code = "import os, signal; from bertjax import cli; cli.exit_code_of(lambda: os.kill(os.getpid(), signal.SIGBUS))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in done.stderr and "in exit_code_of" in done.stderr


def test_a_command_whose_reader_has_left_ends_quietly():
    """As in `... --help | head -1`: the exit code is that of SIGPIPE, as of other commands."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for output in ("print('a line')", "import argparse; argparse.ArgumentParser().parse_args(['--help'])"):
        code = f"import sys\nfrom bertjax import cli\ndef main():\n    {output}\nsys.exit(cli.exit_code_of(main))"
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, env=environ)
        os.close(writing)
        assert (done.returncode, done.stderr) == (cli.UNREAD, b""), output
