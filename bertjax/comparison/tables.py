"""The held-out numbers of a comparison as a file for a paper or a spreadsheet: CSV and LaTeX."""

import csv
import io
from collections.abc import Iterator, Sequence

from etils import epath

from bertjax.comparison.effects import OTHER_TASK, Effect
from bertjax.comparison.numbers import Numbers, Spread
from bertjax.comparison.report import other_tasks, progress_of, unfinished
from bertjax.comparison.runs import Entry
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError
from bertjax.training.run.tables import csv_cells

SUFFIXES = (".csv", ".tex")
_COLUMNS = ("run", "unfinished", "parameters", "metric", "n", "mean", "deviation", "low", "high")
_EFFECT_COLUMNS = ("difference", "difference_low", "difference_high", "p", "covers", "paired", "n_first", "other_task")
_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
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


def write(
    target: epath.Path,
    entries: Sequence[Entry],
    numbers: Sequence[Numbers],
    effects: Sequence[dict[str, Effect]],
    metrics: Sequence[str] = (),
) -> None:
    """Write a table of held-out metrics, by default of all and of probes, in the format of its suffix."""
    if metrics:
        chosen = [{name: each.heldout[name] for name in metrics if name in each.heldout} for each in numbers]
        numbers = [Numbers(heldout, {}, each.spent) for heldout, each in zip(chosen, numbers, strict=True)]
    text = (as_csv if target.suffix == ".csv" else as_latex)(entries, numbers, effects)
    target.parent.mkdir(parents=True, exist_ok=True)
    storage.retry(lambda: storage.write_bytes(target, text.encode()), target)


def as_csv(entries: Sequence[Entry], numbers: Sequence[Numbers], effects: Sequence[dict[str, Effect]]) -> str:
    """Return a line for each run and metric, unrounded; the differences are from the first run.

    `n` and `n_first` are the numbers of seeds. `other_task` lists why a metric is not compared with the first run's.
    `unfinished` has the step of the last evaluation of runs that have not finished.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS + _EFFECT_COLUMNS)
    for entry, of_entry, of_effects in zip(entries, numbers, [{}, *effects], strict=True):
        for metric, spread in of_entry.measured.items():
            parameters = of_entry.spent["parameters"].mean if "parameters" in of_entry.spent else ""
            values = (entry.name, progress_of(entry), parameters, metric)
            values += (len(spread.values), spread.mean, spread.deviation)
            effect = of_effects.get(metric)
            compared = _effect_columns(effect) if effect else ("",) * len(_EFFECT_COLUMNS)
            writer.writerow(csv_cells((*values, *(spread.interval or ("", "")), *compared)))
    return text.getvalue()


def _effect_columns(effect: Effect) -> tuple:
    numbers = ("" if number is None else number for number in (effect.value, effect.low, effect.high, effect.p))
    return *numbers, effect.covers, effect.paired, effect.seeds[0], "; ".join(effect.task_changes)


def as_latex(entries: Sequence[Entry], numbers: Sequence[Numbers], effects: Sequence[dict[str, Effect]]) -> str:
    """Return a `tabular` for `booktabs`: mean ± deviation of runs and metrics, and the difference from the first run.

    Rows are the runs or the metrics, whichever are more, so that the table is narrow. Its last lines say what the
    numbers are, so that no reader takes a deviation for an interval.
    """
    metrics = list(dict.fromkeys(metric for of_entry in numbers for metric in of_entry.measured))
    rows = [["", "parameters", *map(_escaped, metrics)]]
    for entry, of_entry, of_effects in zip(entries, numbers, [{}, *effects], strict=True):
        cells = (_cell(of_entry.measured.get(metric), of_effects.get(metric)) for metric in metrics)
        parameters = f"{of_entry.spent['parameters'].mean:,.0f}" if "parameters" in of_entry.spent else "--"
        rows.append([_escaped(entry.name), parameters, *cells])
    if len(metrics) > len(entries):
        rows = list(zip(*rows))
    head, *lines = (" & ".join(row) + r" \\" for row in rows)
    begin = f"\\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}"
    notes = [
        f"\\multicolumn{{{len(rows[0])}}}{{p{{0.9\\linewidth}}}}{{\\footnotesize {_escaped(note)}}} \\\\"
        for note in _notes(entries, numbers, effects)
    ]
    end = [r"\bottomrule", *notes, r"\end{tabular}", ""]
    return "\n".join([begin, r"\toprule", head, r"\midrule", *lines, *end])


def _notes(entries: Sequence[Entry], numbers: Sequence[Numbers], effects: Sequence[dict[str, Effect]]) -> Iterator[str]:
    if any(len(spread.values) > 1 for of_entry in numbers for spread in of_entry.measured.values()):
        yield "Mean and standard deviation over n seeds."
    written = [
        of_effects[metric]
        for of_entry, of_effects in zip(numbers[1:], effects, strict=True)
        for metric in of_entry.measured
        if metric in of_effects
    ]
    if covers := dict.fromkeys(effect.covers for effect in written if effect.low is not None):
        yield f"Difference from {entries[0].name} with its 95% interval over {' or '.join(covers)}."
    if tests := [effect.test for effect in written if effect.p is not None]:
        corrected = ", not corrected for their number" * (len(tests) > 1)
        yield f"p: {' or '.join(dict.fromkeys(tests))} over seeds{corrected}."
    for line in unfinished(entries):
        yield f"{line}."
    yield from other_tasks(entries, effects)


def _cell(spread: Spread | None, effect: Effect | None) -> str:
    if spread is None:
        return "--"
    mark = f"^{{{OTHER_TASK}}}" if effect is not None and effect.task_changes else ""
    count = len(spread.values)
    deviation = f" \\pm {spread.deviation:.4f}\\;(n={count})" if count > 1 else ""
    difference = ""
    if effect is not None and effect.value is not None and effect.low is not None:
        difference = f"; ${effect.value:+.4f}\\;[{effect.low:+.4f}, {effect.high:+.4f}]$"
    if effect is not None and effect.p is not None:
        difference += " ($p<0.001$)" if effect.p < 0.001 else f" ($p={effect.p:.3f}$)"
    return f"${spread.mean:.4f}{mark}{deviation}${difference}"


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
