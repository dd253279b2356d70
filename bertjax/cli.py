"""What all commands share: the parser, exit codes, and the command lines that they print to be typed next."""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from bertjax.errors import UserError


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


class ArgumentParser(argparse.ArgumentParser):
    """Reports a wrong flag as any other bad input: in one line."""

    def error(self, message: str):
        raise UserError(f"{message}; see python -m {self.prog.removeprefix('python -m ')} --help")


def exit_code_of(main: Callable[[], int | None]) -> int:
    """Runs an entry point; a `UserError` becomes one line on stderr and its exit code, Ctrl-C just 130."""
    try:
        return main() or 0
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"error: {error}; make room or mend the path, then give the same command again", file=sys.stderr)
        return 1
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
