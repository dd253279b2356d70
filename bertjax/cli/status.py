"""Print the status of runs: state, step, time left, newest checkpoint, losses, goodput, warnings.

It reads only the workdirs, so it works on every machine that can read them.

examples:
  one run:             python -m bertjax status runs/tiny
  runs in a bucket:    python -m bertjax status gs://BUCKET/run-1 gs://BUCKET/run-2
  for a monitor:       python -m bertjax status runs/tiny --json

exit codes: 0 every run is finished or active; 1 a run has failed or stalled; 75 a run was stopped and can
be resumed; 2 bad input
"""

import dataclasses
from collections.abc import Sequence

from etils import epath
from rich.console import Console
from rich.text import Text

from bertjax.runtime import command_line, storage
from bertjax.runtime.command_line import BAD_INPUT, FAILED, FINISHED, STOPPED
from bertjax.runtime.errors import UserError, json_text, printable, say
from bertjax.training.run.run_status import RunStatus, read_status
from bertjax.training.run.tables import Table
from bertjax.training.run.workdir import Workdir, runs_in

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def run(paths: Sequence[epath.PathLike]) -> tuple[list[RunStatus], list[UserError]]:
    """Return the status of each workdir, and of each run in a folder of seeds or folds.

    Returns:
      (statuses, errors); there is an error for each path without a run, and for damaged or unreadable files.
    """
    statuses, errors = [], []
    for path in paths:
        try:
            root = Workdir.at(path).root
            with storage.storage_errors(root):
                # Without folders of seeds or folds, the path itself is a run.
                workdirs = (root.is_dir() and runs_in(root)) or [root]
        except (UserError, OSError) as error:
            # Continue: a monitor must see the other runs.
            errors.append(_user_error(error, path))
            continue
        for workdir in workdirs:
            try:
                statuses.append(read_status(workdir))
            except (UserError, OSError) as error:
                errors.append(_user_error(error, workdir))
    return statuses, errors


def _user_error(error: UserError | OSError, path: epath.PathLike) -> UserError:
    if isinstance(error, UserError):
        return error
    remedy = "check its rights"
    if storage.is_remote(path):
        remedy = "check the address and your login (for gs://: gcloud auth application-default login)"
    return storage.user_error(error, f"{path} cannot be read", remedy)


def exit_code(statuses: Sequence[RunStatus]) -> int:
    """Return 0 if every run is finished or active, 1 if one has failed or stalled, and 75 if one was stopped."""
    if any(status.state in ("failed", "stalled") for status in statuses):
        return FAILED
    return STOPPED if any(status.state == "stopped" for status in statuses) else FINISHED


def print_statuses(statuses: Sequence[RunStatus]) -> None:
    """Print several runs as a table with warnings below it; print one run, or a table that is too wide, as lines."""
    console = Console()
    rows = [_cells(status) for status in statuses]
    table = Table(*(rows[0] if rows else ()))
    for row in rows:
        table.add_row(*row.values())
    unlimited = console.options.update(max_width=10_000)
    # Minimum width that keeps every word whole: a path broken over lines cannot be copied.
    needed = console.measure(table, options=unlimited).minimum
    is_table = len(statuses) > 1 and needed <= console.width
    if is_table:
        console.print(table)
    for index, (status, row) in enumerate(zip(statuses, rows, strict=True)):
        if is_table:
            lines = [(name, f"{status.workdir}: {text}") for name, text in _remarks(status)]
        else:
            lines = [*row.items(), *_remarks(status)]
            console.print("\n" * (index > 0), end="")
        for name, text in lines:
            # `Text` is not parsed for markup: a path may contain brackets.
            console.print(Text(printable(f"{name:<12}{text}")), soft_wrap=True)


def _remarks(status: RunStatus) -> list[tuple[str, str]]:
    failure = [("failure", status.failure)] if status.failure else []
    return failure + [("warning", warning) for warning in status.warnings]


def _cells(status: RunStatus) -> dict[str, str]:
    """Return {heading: text} for a run."""
    step = f"{status.step:,}" if status.steps is None else f"{status.step:,} of {status.steps:,}"
    state = status.state
    if status.silent_seconds is not None and state != "finished":
        state += f", last sign of life {duration(status.silent_seconds)} ago"
    saved = "none" if status.checkpoint is None else f"step {status.checkpoint:,}"
    if status.checkpoint_age_seconds is not None:
        saved += f", {duration(status.checkpoint_age_seconds)} ago"
    starts = "1 start" if status.starts == 1 else f"{status.starts:,} starts"
    losses = (f"{name} {'not finite' if loss is None else f'{loss:.3f}'}" for name, loss in status.losses.items())
    return {
        "run": status.workdir,
        "state": state,
        "step": step,
        "ETA": "unknown" if status.eta_seconds is None else duration(status.eta_seconds),
        "checkpoint": saved,
        "losses": ", ".join(losses) or "none",
        "goodput": "unknown" if status.goodput is None else f"{status.goodput:.1%} in {starts}",
    }


def duration(seconds: float) -> str:
    """Return a duration in its two largest units, such as `3 h 20 min`."""
    rest, parts = round(seconds), []
    for length, unit in _UNITS:
        count, rest = divmod(rest, length)
        if count or parts:
            parts.append(f"{count} {unit}")
    # `2 h 0 min` is shortened to `2 h`.
    return " ".join(part for part in parts[:2] if not part.startswith("0 ")) or "0 s"


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser("status", __doc__)
    parser.add_argument(
        "workdirs", nargs="+", metavar="WORKDIR", help="workdir of a run, or folder of runs with --seeds"
    )
    parser.add_flags({"--json": "print a JSON list with all values instead of tables"}, action="store_true")
    args = parser.parse_args(argv)
    statuses, errors = run(args.workdirs)
    if args.json:
        say(json_text([dataclasses.asdict(status) for status in statuses], indent=2))
    else:
        print_statuses(statuses)
    codes = {exit_code(statuses), *map(command_line.report, errors)}
    # The most urgent code wins: a mistyped path, then a failed run, then one that was stopped.
    return next(code for code in (BAD_INPUT, FAILED, STOPPED, FINISHED) if code in codes)
