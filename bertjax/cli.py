"""Parser, exit codes and printed command lines of all commands."""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from bertjax.errors import Busy, RunFailed, UserError

# Exit codes. 75 is EX_TEMPFAIL: a launcher gives the same command again.
FINISHED, FAILED, BAD_INPUT, STOPPED, INTERRUPTED = 0, 1, 2, 75, 130


def command(module: str, *arguments: str) -> str:
    """Return `python -m bertjax.<module> ...` as the user can type it in the current folder."""
    return f"{_python()} -m bertjax.{module} {shlex.join(arguments)}".rstrip()


def _python() -> str:
    """Return `python` if the shell finds this interpreter under that name, else its path."""
    here, in_path = Path(sys.executable), shutil.which("python")
    if in_path and Path(in_path).absolute() == here:
        return "python"
    return shlex.quote(os.path.relpath(here) if here.is_relative_to(Path.cwd()) else str(here))


class ArgumentParser(argparse.ArgumentParser):
    """A parser that reports a wrong flag like any other bad input: in one line."""

    def error(self, message: str):
        raise UserError(f"{message}; see python -m {self.prog.removeprefix('python -m ')} --help")


def exit_code_of(main: Callable[[], int | None]) -> int:
    """Run an entry point and return its exit code; an expected error is printed as one line on stderr."""
    try:
        return main() or FINISHED
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        print(f"error: {error}; free disk space or fix the path, then run the same command again", file=sys.stderr)
        return FAILED
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return code_for(error)


def code_for(error: Exception) -> int:
    """Return the exit code of a command that ends with this error."""
    if isinstance(error, Busy):
        return STOPPED
    return BAD_INPUT if isinstance(error, UserError) and not isinstance(error, RunFailed) else FAILED
