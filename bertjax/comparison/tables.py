"""The held-out numbers of a comparison as a file for a paper or a spreadsheet: CSV and LaTeX."""

import csv
import io
from collections.abc import Sequence

from etils import epath

from bertjax import storage
from bertjax.comparison.effects import Effect
from bertjax.comparison.numbers import Numbers, Spread
from bertjax.comparison.runs import Entry
from bertjax.errors import UserError

SUFFIXES = (".csv", ".tex")
_COLUMNS = ("run", "metric", "runs", "mean", "deviation", "low", "high")
_EFFECT_COLUMNS = ("difference", "difference_low", "difference_high", "p", "covers", "paired")
_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def check_path(path: str) -> epath.Path:
    """Return the path of a table.

    Raises:
      UserError: its suffix is not that of a known format.
    """
    target = epath.Path(path).expanduser()
    if target.suffix not in SUFFIXES:
        raise UserError(f"--table={path} must end in {' or '.join(SUFFIXES)}")
    return target


def check_numbers(target: epath.Path, numbers: Sequence[Numbers]) -> None:
    """Raise UserError if no run has been evaluated yet."""
    if not any(of_entry.measured for of_entry in numbers):
        raise UserError(f"--table={target} would be empty: no run has an evaluation yet; let one reach its first")


def write(
    target: epath.Path, entries: Sequence[Entry], numbers: Sequence[Numbers], effects: Sequence[dict[str, Effect]]
) -> None:
    """Write a table in the format of its suffix."""
    text = (as_csv if target.suffix == ".csv" else as_latex)([entry.name for entry in entries], numbers, effects)
    target.parent.mkdir(parents=True, exist_ok=True)
    storage.retry(lambda: storage.write_bytes(target, text.encode()), target)


def as_csv(names: Sequence[str], numbers: Sequence[Numbers], effects: Sequence[dict[str, Effect]]) -> str:
    """Return a line for each run and metric, unrounded; the differences are from the first run."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS + _EFFECT_COLUMNS)
    for name, of_entry, of_effects in zip(names, numbers, [{}, *effects], strict=True):
        for metric, spread in of_entry.measured.items():
            values = (name, metric, len(spread.values), spread.mean, spread.deviation, *(spread.interval or ("", "")))
            effect = of_effects.get(metric)
            writer.writerow(values + (tuple("" if part is None else part for part in effect) if effect else ("",) * 6))
    return text.getvalue()


def as_latex(names: Sequence[str], numbers: Sequence[Numbers], effects: Sequence[dict[str, Effect]]) -> str:
    """Return a `tabular` for `booktabs`: mean ± deviation of runs and metrics, and the p-value against the first run.

    Rows are the runs or the metrics, whichever are more, so that the table is narrow.
    """
    metrics = list(dict.fromkeys(metric for of_entry in numbers for metric in of_entry.measured))
    rows = [["", *map(_escaped, metrics)]]
    for name, of_entry, of_effects in zip(names, numbers, [{}, *effects], strict=True):
        cells = (_cell(of_entry.measured.get(metric), of_effects.get(metric)) for metric in metrics)
        rows.append([_escaped(name), *cells])
    if len(metrics) > len(names):
        rows = list(zip(*rows))
    head, *lines = (" & ".join(row) + r" \\" for row in rows)
    begin = f"\\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}", ""])


def _cell(spread: Spread | None, effect: Effect | None) -> str:
    if spread is None:
        return "--"
    deviation = f" \\pm {spread.deviation:.4f}" if len(spread.values) > 1 else ""
    p = "" if effect is None or effect.p is None else f"\\;(p={effect.p:.3f})"
    return f"${spread.mean:.4f}{deviation}{p}$"


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
