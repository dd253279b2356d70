"""The smaller models that were made from a run: a line of RUN/smaller.jsonl for each, and their table on its page."""

import os
from typing import Any

from bertjax.analysis.page import Section, table
from bertjax.config import export
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError, reason
from bertjax.runtime.storage import split_name
from bertjax.training.run.workdir import Workdir, append_jsonl, read_jsonl

FILE = "smaller.jsonl"
_KEYS = ("command", "parameters", "bytes", "scores", "milliseconds")


def record(
    source: str | os.PathLike,
    command: str,
    parameters: tuple[int, int],
    sizes: tuple[int, int],
    scores: dict[str, tuple[float, float]],
    milliseconds: tuple[float, float] | None,
) -> str:
    """Add a line to the run that a model belongs to; return its workdir, empty if there is none.

    Args:
      source: the model that was made smaller: RUN, RUN@STEP, or its export RUN/export.
      command: the command that did it.
      parameters: number of parameters before and after.
      sizes: bytes of the weights before and after.
      scores: {metric: (before, after)}; empty if nothing was scored.
      milliseconds: median time of a text before and after; None if it was not measured.

    Raises:
      StorageError: the run cannot be written.
    """
    path = split_name(source)[0]
    files = Workdir.at(path if storage.is_remote(path) else os.path.abspath(path))
    if storage.exists(files.root / export.MANIFEST):
        files = Workdir(files.root.parent)
    if not storage.exists(files.checkpoints):
        return ""
    append_jsonl(files.root / FILE, dict(zip(_KEYS, (command, parameters, sizes, scores, milliseconds))))
    return os.fspath(files.root)


def sections_of(workdir: Workdir) -> list[Section]:
    """Return the section about a run's smaller models, if any were made."""
    try:
        rows = tuple(map(_row, read_jsonl(workdir.root / FILE, *_KEYS)))
    except (UserError, ValueError, TypeError, AttributeError, ZeroDivisionError) as error:  # the rest is worth a page
        return [Section("smaller", "Smaller models", skipped=f"{workdir.root / FILE} is damaged ({reason(error)})")]
    if not rows:
        return []
    headings = ("command", "parameters", "bytes", "scores", "ms a text")
    return [Section("smaller", "Smaller models", blocks=(table("run/smaller", headings, rows),))]


def _row(line: dict[str, Any]) -> tuple[str, ...]:
    counts = [f"{before:,} → {after:,} ({after / before:.1%})" for before, after in (line["parameters"], line["bytes"])]
    scores = [f"{name} {before:.4f} → {after:.4f}" for name, (before, after) in line["scores"].items()]
    times = line["milliseconds"]
    milliseconds = f"{times[0]:.2f} → {times[1]:.2f}" if times else "not measured"
    return line["command"], *counts, ", ".join(scores) or "not scored", milliseconds
