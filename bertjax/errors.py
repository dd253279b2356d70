"""Errors that end a command with one line on stderr and an exit code."""

from collections.abc import Sequence


class UserError(Exception):
    """Bad input: what is wrong, the value, the remedy, in one line."""

    exit_code = 2


class RunFailed(UserError):
    """A run that had started cannot continue; what it saved is kept."""

    exit_code = 1


# The exit code of a run that was asked to stop and saved its state (EX_TEMPFAIL): a launcher repeats the command.
STOPPED = 75


class Busy(UserError):
    """Another process holds what this one needs; the same command may succeed later (EX_TEMPFAIL)."""

    exit_code = STOPPED


class Damaged(UserError):
    """A file is cut short, altered, or not in its format."""


def shorten(items: Sequence[str], limit: int = 4, separator: str = ", ") -> str:
    """Return the first items for a message, and the number of the others: `a, b, c, d and 3 more`."""
    rest = f" and {len(items) - limit} more" if len(items) > limit else ""
    return separator.join(items[:limit]) + rest
