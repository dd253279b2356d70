"""Remedies in messages about labeled files: a setting in a run, a flag in a command that reads a file of its own.

Readers of tables know neither. A command wraps its reading in `of_command`, and messages then name no setting that the
command does not have.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping

# {setting of the examples that has a flag: its column}; None in a run.
_COLUMNS: contextvars.ContextVar[Mapping[str, str] | None] = contextvars.ContextVar("columns", default=None)


@contextlib.contextmanager
def of_command(columns: Mapping[str, str]) -> Iterator[None]:
    """Within this context, messages name flags instead of settings.

    Args:
      columns: {setting of the examples that the command has a flag for, such as `text`: the column it has}.
    """
    token = _COLUMNS.set(columns)
    try:
        yield
    finally:
        _COLUMNS.reset(token)


def setting(remedy: str) -> str:
    """Return a remedy that sets something in the configuration; empty in a command, which refuses it."""
    return remedy if _COLUMNS.get() is None else ""


def flag(column: str) -> str:
    """Return the flag that names another column than this one; empty in a run, and if the command has none."""
    roles = [role for role, own in (_COLUMNS.get() or {}).items() if own == column]
    return f"name the column with --{roles[0].replace('_', '-')}=COLUMN" if roles else ""
