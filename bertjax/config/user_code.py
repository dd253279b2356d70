"""Locate an exception in a user's own files, such as a custom objective, and report it in one line."""

import contextlib
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from bertjax.runtime.errors import UserError, reason

_PATHS = sysconfig.get_paths()
# Code that is not the user's: bertjax, the standard library and installed packages.
_OTHERS = tuple(
    Path(folder).resolve()
    for folder in (Path(__file__).parents[1], *(_PATHS[k] for k in ("stdlib", "purelib", "platlib")))
)


def line_of(error: BaseException) -> str:
    """Return `FILE:LINE in FUNCTION` of the innermost frame in the user's code, or "" if there is none."""
    # A file that does not parse has no frame of its own in the traceback.
    if isinstance(error, SyntaxError) and error.filename and _is_users(error.filename):
        return f"{error.filename}:{error.lineno}"
    # The innermost frame is often in JAX or NumPy; the user can change only the last one of their own.
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    if not frames:
        return ""
    function = "" if frames[-1].name == "<module>" else f" in {frames[-1].name}"
    return f"{frames[-1].filename}:{frames[-1].lineno}{function}"


def _is_users(filename: str) -> bool:
    path = Path(filename)
    # Frames such as `<string>` have no file that a user could open.
    return path.is_file() and not any(path.resolve().is_relative_to(folder) for folder in _OTHERS)


@contextlib.contextmanager
def user_errors(setting: str, remedy: str = "correct it", is_theirs: bool = False) -> Iterator[None]:
    """Turn an exception from the user's code into an error of one line, with the file and line.

    Args:
      setting: the setting that names the code.
      remedy: what the user can do.
      is_theirs: whether an exception without a line of the user's code has its cause there all the same. Otherwise it
        is a defect of bertjax, which needs its traceback.

    Raises:
      UserError: the code has raised any exception.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the user's code may raise anything
        line = line_of(error)
        if not line and not is_theirs:
            raise
        where = f"{line}: " if line else ""
        raise UserError(f"{setting} fails: {where}{type(error).__name__}: {reason(error)}; {remedy}") from error
