"""Benchmarks that resume: a finished cell is a line of a file, and the same command runs the cells without one."""

import fcntl
import hashlib
import json
import resource
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bertjax.runtime.errors import RunFailed, UserError

Line = dict[str, Any]


def finished(path: Path) -> list[Line]:
    """Return the lines of a file whose last line may be incomplete."""
    whole = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in whole if line]


def append(path: Path, line: Line) -> None:
    """Add a line to a file, which several commands may share. What is left of an incomplete line is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write((json.dumps(line) + "\n").encode())


def run(
    cells: dict[str, Any], path: Path, measure: Callable[[Any], Line], clean: Callable[[Any], None] | None = None
) -> None:
    """Measure cells, each by its name, and add their lines to a file.

    A cell that fails does not stop the others, since the command is meant to run unattended.

    Args:
      clean: removes what a cell has left, once its line is written.

    Raises:
      RunFailed: cells have failed; they are listed.
    """
    failed = []
    for number, (name, cell) in enumerate(cells.items(), 1):
        print(f"cell {number} of {len(cells)}: {name}", file=sys.stderr)
        try:
            line = measure(cell)
        except RunFailed as error:
            failed.append(name)
            print(f"{name} failed: {error}", file=sys.stderr)
            continue
        append(path, line)
        if clean:
            clean(cell)
    report(failed)


def report(failed: list[str]) -> None:
    """Raise an error that lists the cells that have failed, if there are any.

    Raises:
      RunFailed: `failed` is not empty.
    """
    if failed:
        what = "1 cell" if len(failed) == 1 else f"{len(failed)} cells"
        raise RunFailed(f"{what} failed: {', '.join(failed)}; run the same command again to continue")


def chosen(names: str, known: Iterable[str], flag: str) -> tuple[str, ...]:
    """Return the names of a flag, which commas separate; all that are known if there are none.

    Raises:
      UserError: a name is unknown.
    """
    known = tuple(known)
    wanted = tuple(filter(None, names.split(","))) or known
    if unknown := [name for name in wanted if name not in known]:
        raise UserError(f"{flag} has {unknown[0]!r}; choose among {', '.join(known)}")
    return wanted


def fingerprint(made_of: Any) -> str:
    """Return a hash of what a cell is made of, as JSON; a cell whose hash has changed is run again."""
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]


def core_seconds() -> float:
    """Return the CPU seconds of all commands that have ended, which other work on the machine does not lengthen."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
