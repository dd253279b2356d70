"""Errors that end a command with one line on stderr instead of a traceback, and safe printing of untrusted text.

Exit codes are in `command_line`. Class names, ids, notes and settings come from other people's files. A terminal obeys
control characters in them: they change its title, hide text, or make it answer with a command. `printable` escapes
them, `say` prints text without them, and `json_text` writes JSON without them.
"""

import csv
import json
import math
import re
import types
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

# Characters that a terminal obeys instead of showing: control characters, and ones that reverse the text direction.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
# The same without tabs and line ends.
_CONTROL_IN_LINES = re.compile(_CONTROL.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


class UserError(Exception):
    """Bad input. The message is one line: what is wrong, the value, the remedy."""


class RunFailed(UserError):
    """A run that had started cannot continue; its checkpoints are kept."""


class FailedAgain(RunFailed):
    """A run failed twice at the same step from the same checkpoint; it would fail a third time."""


class Unavailable(UserError):
    """Storage, a network or a device does not respond; the same command may succeed later."""


class Busy(Unavailable):
    """Another process holds what this one needs; the same command may succeed later."""


class Untrusted(UserError):
    """A file names a module that this process has not imported and the user has not trusted."""


class Unexplained(UserError):
    """A device or a library cannot start for an unknown reason; taken as bad input unless it has worked before."""


class Damaged(UserError):
    """A file is truncated, altered, or not in its format."""


def shorten(items: Sequence[str], limit: int = 4, separator: str = ", ") -> str:
    """Return the first items and how many more there are: `a, b, c, d and 3 more`."""
    rest = f" and {len(items) - limit} more" if len(items) > limit else ""
    return separator.join(items[:limit]) + rest


def check_format(owner: str, found: Any, known: int, remedy: str = "use the version that wrote it") -> None:
    """Raise UserError unless a file has the format that this version of bertjax reads.

    Args:
      owner: the file, as the subject of the message.
      found: its format version.
      known: the format version that this bertjax writes and reads.
      remedy: what the user can do.
    """
    if found != known:
        raise UserError(f"{owner} has format {quoted(found)}, and this bertjax reads format {known}; {remedy}")


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, shortened, for use in another message."""
    lines = str(error).strip().splitlines()
    return cut_text(lines[0]) if lines else type(error).__name__


def quoted(value: Any) -> str:
    """Return a value's `repr`, shortened."""
    return cut_text(repr(value))


def cut_text(text: str, width: int = 300) -> str:
    """Return at most `width` characters of a text, with `...` if it is longer."""
    return text if len(text) <= width else f"{text[:width]}..."


def printable(text: str) -> str:
    """Return untrusted text in one line, with control characters as escapes such as `\\x1b`."""
    return _CONTROL.sub(_escape, text)


def say(text: str, file: TextIO | None = None, end: str = "\n", flush: bool = False) -> None:
    """Print lines with untrusted text; control characters are escaped.

    Args:
      text: one or several lines. Line ends stay, so pass parts that must not break a line through `printable` first.
      file, end, flush: as for `print`.
    """
    print(cleaned(text), file=file, end=end, flush=flush)


def cleaned(text: str) -> str:
    """Return text with line ends and tabs kept and all other control characters escaped."""
    return _CONTROL_IN_LINES.sub(_escape, text)


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as readable JSON (no ASCII escapes for letters), for a terminal or a file.

    Control characters are escaped, which does not change the value. Non-finite numbers become null: JSON has no NaN,
    and strict parsers refuse the whole text.
    """
    text = json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)
    return _CONTROL_IN_LINES.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def csv_line(cells: Iterable[Any]) -> str:
    """Return a line of a CSV file, without its end. A cell with a line break is in quotes."""
    # With another terminator than this, Python before 3.13 leaves a carriage return or a line feed without quotes.
    writer = csv.writer(types.SimpleNamespace(write=lambda line: line.removesuffix("\r\n")), lineterminator="\r\n")
    return writer.writerow(cells)  # it returns the result of `write`


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
