"""Command lines that a user can type as they stand."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def command(module: str, *arguments: str) -> str:
    """`python -m bertjax.<module> ...` with the interpreter that runs now, from the folder that it runs in."""
    return f"{_python()} -m bertjax.{module} {shlex.join(arguments)}".rstrip()


def _python() -> str:
    """`python` where the shell would find this interpreter under that name, else its path."""
    here, found = Path(sys.executable), shutil.which("python")
    if found and Path(found).absolute() == here:
        return "python"
    inside = here.is_relative_to(Path.cwd())
    return shlex.quote(os.path.relpath(here) if inside else str(here))
