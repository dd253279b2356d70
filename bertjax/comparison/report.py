"""A comparison as tables, and as plain data."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from bertjax.comparison.effects import Effect
from bertjax.comparison.numbers import Numbers, Spread
from bertjax.comparison.runs import Entry
from bertjax.comparison.settings import Differences, Rows, shorten, text_of
from bertjax.training.run.tables import Table

_FINGERPRINT_WIDTH = 8
_METRIC = "{:.4f}"
_SPENT = {
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
    """Return all differences and numbers, without shortening.

    Returns:
      {`runs`: {name: {`path`, `runs`, `finished`, `planned_steps`}}, `differences`: {half: {setting: {name: value}}},
      `numbers`: {name: {part: {number: {`values`, `mean`, `deviation`, `interval`}}}}, `effects`: {name: {metric: the
      fields of `Effect`}}, without the first entry, from which they are differences}. A value is None if the entry
      lacks the setting, and {`each`: distinct values} if its seeds differ. Halves and parts are the fields of
      `Differences` and `Numbers`.
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
            for half, rows in _fields(differences).items()
        },
        "numbers": {
            name: {
                part: {number: _spread_dict(spread) for number, spread in spreads.items()}
                for part, spreads in _fields(of_entry).items()
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
    console: Console | None = None,
) -> None:
    """Print the settings that differ, the numbers and their differences, with one column for each entry."""
    console = console or Console()
    for title, rows, width in (
        ("settings that differ: what is trained", differences.identity, None),
        ("settings that differ: where the data is, and how the run is executed", differences.execution, None),
        ("data that differs (fingerprints)", differences.content, _FINGERPRINT_WIDTH),
    ):
        if rows:
            console.print(_settings_table(title, entries, rows, width))
    if len(entries) > 1 and not any(_fields(differences).values()):
        console.print("no setting differs")
    console.print(_numbers_table(entries, numbers))
    if any(effects):
        console.print(_effects_table(entries, effects))


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def _spread_dict(spread: Spread) -> dict[str, Any]:
    parts = {"values": list(spread.values), "mean": spread.mean, "deviation": spread.deviation}
    return parts | {"interval": list(spread.interval or ()) or None}


def _table(title: str, entries: Sequence[Entry]) -> Table:
    table = Table(title=title)
    table.add_column("", no_wrap=True)
    for entry in entries:
        table.add_column(entry.name, justify="right", overflow="fold")
    return table


def _settings_table(title: str, entries: Sequence[Entry], rows: Rows, width: int | None) -> Table:
    table = _table(title, entries)
    for name, row in rows.items():
        texts = [text_of(values) for values in row]
        table.add_row(name, *(shorten(texts, width) if width else shorten(texts)))
    return table


def _numbers_table(entries: Sequence[Entry], numbers: Sequence[Numbers]) -> Table:
    table = _table("numbers; over seeds mean ± deviation [95% interval of the mean]", entries)

    def add(title: str, pattern: str, find: Callable[[Numbers], Spread | None]) -> None:
        cells = [_cell(find(values), pattern, len(entry.runs)) for values, entry in zip(numbers, entries)]
        table.add_row(title, *cells)

    for prefix, part in (("held out: ", "heldout"), ("probe: ", "probes"), ("baseline: ", "baselines")):
        for name in dict.fromkeys(name for values in numbers for name in getattr(values, part)):
            add(f"{prefix}{name}", _METRIC, lambda values, part=part, name=name: getattr(values, part).get(name))
        table.add_section()
    table.add_row("finished", *map(_finished, entries))
    for name, (title, pattern) in _SPENT.items():
        add(title, pattern, lambda values, name=name: values.spent.get(name))
    return table


def _effects_table(entries: Sequence[Entry], effects: Sequence[dict[str, Effect]]) -> Table:
    table = _table(f"differences from {entries[0].name} [95% interval] p-value", entries[1:])
    for name in dict.fromkeys(name for of_entry in effects for name in of_entry):
        table.add_row(name, *(_effect_cell(of_entry.get(name)) for of_entry in effects))
    table.caption = "; ".join(dict.fromkeys(map(_basis, (effect for each in effects for effect in each.values()))))
    return table


def _basis(effect: Effect) -> str:
    """Return what an interval is computed from."""
    if not effect.covers:
        return "no interval: it needs several seeds, or scores by example of both sides"
    return f"interval over {effect.covers}{', runs of one seed paired' * effect.paired}"


def _effect_cell(effect: Effect | None) -> str:
    if effect is None:
        return "-"
    interval = "" if effect.p is None else f" [{effect.low:+.4f}, {effect.high:+.4f}] p={effect.p:.3f}"
    return f"{effect.value:+.4f}{interval}"


def _cell(spread: Spread | None, pattern: str, runs: int) -> str:
    if spread is None:
        return "-"
    text = pattern.format(spread.mean)
    if len(set(spread.values)) > 1:
        text += f" ± {pattern.format(spread.deviation)}"
    if pattern == _METRIC and (interval := spread.interval) and interval[0] < interval[1]:
        text += " [{}, {}]".format(*map(pattern.format, interval))
    return text if len(spread.values) == runs else f"{text} ({len(spread.values)} of {runs})"


def _finished(entry: Entry) -> str:
    if len(entry.runs) > 1:
        return f"{sum(run.finished for run in entry.runs)} of {len(entry.runs)} seeds"
    return "yes" if entry.runs[0].finished else f"no, of {entry.runs[0].planned_steps:,} steps"
