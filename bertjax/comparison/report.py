"""Comparisons as tables and as plain data."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from bertjax.comparison.effects import EXAMPLES, OTHER_TASK, SEEDS, Effect
from bertjax.comparison.numbers import Numbers, Spread, last_evaluation
from bertjax.comparison.runs import Entry
from bertjax.comparison.settings import Differences, text_of
from bertjax.runtime.errors import printable
from bertjax.training.run.tables import Table

_FINGERPRINT_WIDTH = 8
_METRIC = "{:.4f}"
_OF_SPREAD = ("values", "mean", "deviation", "interval")
_SPENT = {
    "parameters": ("parameters", "{:,.0f}"),
    "evaluated_at": ("last evaluation at step", "{:,.0f}"),
    "steps": ("steps", "{:,.0f}"),
    "tokens": ("tokens", "{:,.0f}"),
    "flops": ("useful FLOPs", "{:.3e}"),
    "seconds": ("seconds", "{:,.1f}"),
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
}


def as_dict(
    entries: Sequence[Entry],
    differences: Differences,
    numbers: Sequence[Numbers],
    effects: Sequence[dict[str, Effect]],
) -> dict[str, Any]:
    """Return all differences and numbers, unabridged.

    Returns:
      {`runs`: {name: {`path`, `runs`, `finished`, `planned_steps`}}, `differences`: {half: {setting: {name: value}}},
      `numbers`: {name: {part: {number: {`values`, `mean`, `deviation`, `interval`}}}}, `effects`: {name: {metric: the
      fields of `Effect`}}}. Effects are differences from the first entry, which has none itself. A value is None if the
      entry lacks the setting, and {`each`: distinct values} if its seeds differ. Halves and parts are the fields of
      `Differences` and `Numbers`. `interval` is over seeds or, for one run, over examples.
    """
    names = [entry.name for entry in entries]
    return {
        "runs": {
            entry.name: {
                "path": entry.path,
                "runs": len(entry.runs),
                "finished": sum(run.finished for run in entry.runs),
                "planned_steps": max(run.planned_steps for run in entry.runs),
            }
            for entry in entries
        },
        "differences": {
            half: {
                setting: {name: cell[0] if len(cell) == 1 else {"each": list(cell)} for name, cell in zip(names, row)}
                for setting, row in rows.items()
            }
            for half, rows in vars(differences).items()
        },
        "numbers": {
            name: {
                part: {number: {key: getattr(spread, key) for key in _OF_SPREAD} for number, spread in spreads.items()}
                for part, spreads in vars(of_entry).items()
            }
            for name, of_entry in zip(names, numbers)
        },
        "effects": {
            name: {metric: effect._asdict() for metric, effect in of_entry.items()}
            for name, of_entry in zip(names[1:], effects)
        },
    }


def print_comparison(
    entries: Sequence[Entry],
    differences: Differences,
    numbers: Sequence[Numbers],
    effects: Sequence[dict[str, Effect]],
) -> None:
    """Print the differing settings, the numbers and their differences, one column per entry."""
    console = Console()
    for title, rows, width in (
        ("settings that differ: what is trained", differences.identity, None),
        ("settings that differ: where the data is, and how the run is executed", differences.execution, None),
        ("data that differs (fingerprints)", differences.content, _FINGERPRINT_WIDTH),
    ):
        if rows:
            table = _table(title, entries)
            for name, row in rows.items():
                table.add_row(name, *(", ".join(text_of((each,))[:width] for each in values) for values in row))
            console.print(table)
    if len(entries) > 1 and not any(vars(differences).values()):
        console.print("no setting differs")
    console.print(_numbers_table(entries, numbers, effects))
    if any(effects):
        console.print(_effects_table(entries, effects))
    for line in [*unfinished(entries), *other_tasks(entries, effects)]:
        console.print(Text(printable(line)))


def other_tasks(entries: Sequence[Entry], effects: Sequence[dict[str, Effect]]) -> list[str]:
    """Return one line per entry and reason why metrics are not compared with the first entry's."""
    lines = []
    for entry, of_entry in zip(entries[1:], effects):
        reasons: dict[tuple[str, ...], list[str]] = {}
        for name, effect in of_entry.items():
            if effect.task_changes:
                reasons.setdefault(effect.task_changes, []).append(name)
        lines += [
            f"{OTHER_TASK} {', '.join(names)}: {entry.name} is not compared with {entries[0].name}, whose held-out "
            f"task is another one ({'; '.join(changes)})"
            for changes, names in reasons.items()
        ]
    return lines


def unfinished(entries: Sequence[Entry]) -> list[str]:
    """Return a line for each entry with runs that have not finished."""
    return [f"{entry.name} has not finished: {progress}" for entry in entries if (progress := progress_of(entry))]


def progress_of(entry: Entry) -> str:
    """Return at which step the runs of an entry were evaluated last; empty if all of them have finished."""
    if all(run.finished for run in entry.runs):
        return ""
    steps = sorted({last_evaluation(run)[0] or 0 for run in entry.runs})
    planned = max(run.planned_steps for run in entry.runs)
    last = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    seeds = f", {sum(run.finished for run in entry.runs)} of {len(entry.runs)} seeds" if len(entry.runs) > 1 else ""
    return f"last evaluation at step {last} of {planned:,}{seeds}"


def _table(title: str, entries: Sequence[Entry]) -> Table:
    table = Table(title=title)
    table.add_column("", no_wrap=True)
    for entry in entries:
        table.add_column(entry.name, justify="right", overflow="fold")
    return table


def _numbers_table(entries: Sequence[Entry], numbers: Sequence[Numbers], effects: Sequence[dict[str, Effect]]) -> Table:
    table = _table("numbers; over n seeds mean ± deviation", entries)

    def add(title: str, pattern: str, part: str, name: str) -> None:
        spreads = [getattr(values, part).get(name) for values in numbers]
        # Effects start at the second entry; the first one is the reference and has no mark.
        changes = [name in of_entry and of_entry[name].task_changes for of_entry in effects]
        marks = ["", *(OTHER_TASK if changed else "" for changed in changes)]
        cells = [_cell(spread, pattern, len(entry.runs), mark) for spread, entry, mark in zip(spreads, entries, marks)]
        if part in ("heldout", "probes"):
            counts = (f" n={len(spread.values)}" if spread and len(spread.values) > 1 else "" for spread in spreads)
            cells = [f"{cell}{count}" for cell, count in zip(cells, counts)]
        table.add_row(title, *cells)

    for prefix, part in (("held out: ", "heldout"), ("probe: ", "probes"), ("baseline: ", "baselines")):
        for name in dict.fromkeys(name for values in numbers for name in getattr(values, part)):
            add(f"{prefix}{name}", _METRIC, part, name)
        table.add_section()
    table.add_row("finished", *map(_finished, entries))
    for name, (title, pattern) in _SPENT.items():
        add(title, pattern, "spent", name)
    # The caption explains only the kinds of interval that the table has.
    with_interval = [spread for values in numbers for spread in values.measured.values() if spread.interval]
    kinds = {len(spread.values) > 1 for spread in with_interval}
    meanings = {True: "with several seeds, of the mean over other seeds", False: "with one run, over other examples"}
    if kinds:
        table.caption = Text(f"[95% interval]: {'; '.join(meanings[kind] for kind in sorted(kinds, reverse=True))}")
    return table


def _effects_table(entries: Sequence[Entry], effects: Sequence[dict[str, Effect]]) -> Table:
    table = _table(f"differences from {entries[0].name} [95% interval]", entries[1:])
    for name in dict.fromkeys(name for of_entry in effects for name in of_entry):
        table.add_row(name, *(_effect_cell(of_entry.get(name)) for of_entry in effects))
    table.caption = Text("; ".join(dict.fromkeys(_basis(effect) for each in effects for effect in each.values())))
    return table


def _basis(effect: Effect) -> str:
    """Return the basis of an interval and the scope to which it generalizes."""
    if effect.task_changes:
        return f"{OTHER_TASK} another held-out task, see below"
    if not effect.at_one_step:
        return "no interval or p-value of runs that have not finished and were evaluated at different steps"
    if effect.covers == EXAMPLES:
        return f"interval for {EXAMPLES}; no p-value of the methods, which takes several seeds on each side"
    if effect.covers == SEEDS:
        return f"interval and p-value over seeds, on these held-out rows: {effect.test}"
    return "no interval: it takes several seeds that vary on each side, or one finished run on each with 20 examples"


def _effect_cell(effect: Effect | None) -> str:
    if effect is None:
        return "-"
    if effect.value is None:
        return OTHER_TASK
    text = f"{effect.value:+.4f}"
    if effect.low is not None:
        text += f" [{effect.low:+.4f}, {effect.high:+.4f}]"
    if effect.p is not None:
        text += " p<0.001" if effect.p < 0.001 else f" p={effect.p:.3f}"
    # The numbers of seeds on both sides, unless each side is a single run.
    return text if effect.seeds == (1, 1) else f"{text} {effect.sizes}"


def _cell(spread: Spread | None, pattern: str, runs: int, mark: str = "") -> str:
    if spread is None:
        return "-"
    text, count = pattern.format(spread.mean) + mark, len(spread.values)
    # Equal values, such as the number of steps, have no deviation worth printing.
    if len(set(spread.values)) > 1:
        text += f" ± {pattern.format(spread.deviation)}"
    if pattern == _METRIC and (interval := spread.interval):
        text += " [{}, {}]".format(*map(pattern.format, interval))
    return text if count == runs else f"{text} ({count} of {runs})"


def _finished(entry: Entry) -> str:
    if len(entry.runs) > 1:
        return f"{sum(run.finished for run in entry.runs)} of {len(entry.runs)} seeds"
    return "yes" if entry.runs[0].finished else f"no, of {entry.runs[0].planned_steps:,} steps"
