"""What a user did that bertjax cannot do, said in one line."""

import argparse
import sys
from collections.abc import Callable


class UserError(Exception):
    """Bad input: what is wrong, the value, the remedy, in one line."""

    exit_code = 2


class RunFailed(UserError):
    """A run that had begun well cannot go on; what it saved stays."""

    exit_code = 1


# Of a run that was asked to stop and saved its state (EX_TEMPFAIL): a launcher gives the same command again.
STOPPED = 75


class Busy(UserError):
    """Another process holds what this one needs; the same command may do later (EX_TEMPFAIL)."""

    exit_code = STOPPED


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
