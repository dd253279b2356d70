"""The commands of bertjax as benchmarks run them: each in a process of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertjax.runtime.errors import RunFailed

REPOSITORY = Path(__file__).resolve().parents[1]


def call(module: str, *flags: str, python: str = sys.executable) -> None:
    """Run a module with a Python; its output goes to the terminal.

    Raises:
      RunFailed: it ended with another code than 0.
    """
    _run(python, module, flags, sys.__stderr__, REPOSITORY)


def json_of(module: str, *flags: str, folder: Path = REPOSITORY, python: str = sys.executable) -> dict[str, Any]:
    """Run a module in a folder, with a Python, and return the JSON object that it prints.

    Raises:
      RunFailed: it ended with another code than 0.
    """
    return json.loads(_run(python, module, flags, subprocess.PIPE, folder))


def train(config: str, workdir: Path, *flags: str) -> dict[str, Any]:
    """Train on CPU, from the last checkpoint of the workdir if it has one; return the summary of the run."""
    call("bertjax.train", f"--config={config}", f"--workdir={workdir}", "--platform=cpu", *flags)
    return json.loads((workdir / "summary.json").read_text())


def _run(python: str, module: str, flags: tuple[str, ...], stdout: Any, folder: Path) -> bytes | None:
    # Lines of results name a command `bertjax.compress`, which runs as `bertjax compress`.
    program = module.split(".") if module.startswith("bertjax.") else [module]
    command = [python, "-m", *program, *flags]
    paths = filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH")))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(command, cwd=folder, stdout=stdout, env=environment) as process, _stopped_with(process):
        output, _ = process.communicate()
    if process.returncode:
        raise RunFailed(f"{module} ended with code {process.returncode}; run the same command again to continue")
    return output


@contextlib.contextmanager
def _stopped_with(process: subprocess.Popen) -> Iterator[None]:
    """Pass SIGTERM on to a process: a stopped benchmark leaves no training behind, and does not start the next one.

    Raises:
      KeyboardInterrupt: there was one, and the process has ended.
    """
    is_asked = False

    def pass_on(*_) -> None:
        nonlocal is_asked
        is_asked = True
        process.terminate()

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
    if is_asked:
        raise KeyboardInterrupt
