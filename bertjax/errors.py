"""Errors that end a command with one line on stderr instead of a traceback; `bertjax.cli` has their exit codes."""

import re
from collections.abc import Sequence
from typing import Any

# What a terminal obeys instead of showing it: control characters, and those that turn the direction of text around.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class UserError(Exception):
    """Bad input: what is wrong, the value, the remedy, in one line."""


class RunFailed(UserError):
    """A run that had started cannot continue; what it saved is kept."""


class FailedAgain(RunFailed):
    """A run failed twice at the same step from the same checkpoint; the same command would fail a third time."""


class Unavailable(UserError):
    """Storage, a network or a device does not answer; the same command may succeed later."""


class Busy(Unavailable):
    """Another process holds what this one needs; the same command may succeed later."""


class Untrusted(UserError):
    """A file names a module that this process has not imported, and nobody has said that it may."""


class Unexplained(UserError):
    """A device or a library cannot start and does not say why; a mistake of the user unless it has worked before."""


class Damaged(UserError):
    """A file is cut short, altered, or not in its format."""


def shorten(items: Sequence[str], limit: int = 4, separator: str = ", ") -> str:
    """Return the first items for a message, and the number of the others: `a, b, c, d and 3 more`."""
    rest = f" and {len(items) - limit} more" if len(items) > limit else ""
    return separator.join(items[:limit]) + rest


def reason(error: BaseException) -> str:
    """Return what an error says as a part of another line: the first line of its message, shortened."""
    lines = str(error).strip().splitlines()
    return cut_text(lines[0]) if lines else type(error).__name__


def quoted(value: Any) -> str:
    """Return a value as in Python code, in one line and shortened."""
    return cut_text(repr(value))


def cut_text(text: str, width: int = 300) -> str:
    """Return the start of a text."""
    return text if len(text) <= width else f"{text[:width]}..."


def printable(text: str) -> str:
    """Return a text of somebody else with control characters as escapes, such as `\\x1b`, in one line."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
