"""Find the line of a user's own file, such as an objective's, in which an exception arose."""

import sysconfig
import traceback
from pathlib import Path

_PATHS = sysconfig.get_paths()
# Code that is not the user's: this package, the standard library and the installed ones.
_OTHERS = tuple(
    Path(folder).resolve() for folder in (Path(__file__).parent, *(_PATHS[k] for k in ("stdlib", "purelib", "platlib")))
)


def line_of(error: BaseException) -> str:
    """Return `FILE:LINE in FUNCTION` of the innermost line of the user's code, or "" if it has no part in the error."""
    if isinstance(error, SyntaxError) and error.filename and _is_users(error.filename):
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    if not frames:
        return ""
    function = "" if frames[-1].name == "<module>" else f" in {frames[-1].name}"
    return f"{frames[-1].filename}:{frames[-1].lineno}{function}"


def _is_users(filename: str) -> bool:
    path = Path(filename)
    return path.is_file() and not any(path.resolve().is_relative_to(folder) for folder in _OTHERS)
