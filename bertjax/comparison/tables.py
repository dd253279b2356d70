"""A comparison as tables in the terminal, as a file for a paper or a spreadsheet (CSV), and as plain data."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from etils import epath
from rich.console import Console
from rich.text import Text

from bertjax.comparison.curves import Law
from bertjax.comparison.numbers import EXAMPLES, OTHER_TASK, SEEDS, Effect, Numbers, Spread, last_evaluation
from bertjax.comparison.runs import Differences, Entry, text_of
from bertjax.runtime import storage
from bertjax.runtime.errors import printable, say
from bertjax.training.run.tables import Table, csv_text

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
_COLUMNS = ("run", "unfinished", "parameters", "metric", "n", "mean", "deviation", "low", "high")
_EFFECT_COLUMNS = ("difference", "difference_low", "difference_high", "p", "covers", "paired", "n_first", "other_task")


class Comparison(NamedTuple):
    """Runs side by side.

    Attributes:
      entries: runs, in argument order.
      differences: settings that differ between runs.
      numbers: results and costs, one entry per run.
      effects: {held-out metric: difference from the first run}, for every run after the first.
      laws: {loss: how it falls with FLOPs}, of the drawn losses with `x="flops"`, if there are three sizes of models.
    """

    entries: Sequence[Entry]
    differences: Differences
    numbers: Sequence[Numbers]
    effects: Sequence[dict[str, Effect]]
    laws: dict[str, Law]


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Return all differences and numbers, unabridged.

    Returns:
      {`runs`: {name: {`path`, `runs`, `finished`, `planned_steps`}}, `differences`: {half: {setting: {name: value}}},
      `numbers`: {name: {part: {number: {`values`, `mean`, `deviation`, `interval`}}}}, `effects`: {name: {metric: the
      fields of `Effect`}}, `laws`: {metric: {`factor`, `exponent`}}}. Effects are differences from the first entry,
      which has none itself. A value is None if the entry lacks the setting, and {`each`: distinct values} if its seeds
      differ. Halves and parts are the fields of `Differences` and `Numbers`. `interval` is over seeds or, for one run,
      over examples.
    """
    names = [entry.name for entry in comparison.entries]
    return {
        "runs": {
            entry.name: {
                "path": entry.path,
                "runs": len(entry.runs),
                "finished": sum(run.finished for run in entry.runs),
                "planned_steps": max(run.planned_steps for run in entry.runs),
            }
            for entry in comparison.entries
        },
        "differences": {
            half: {
                setting: {name: cell[0] if len(cell) == 1 else {"each": list(cell)} for name, cell in zip(names, row)}
                for setting, row in rows.items()
            }
            for half, rows in vars(comparison.differences).items()
        },
        "numbers": {
            name: {
                part: {number: {key: getattr(spread, key) for key in _OF_SPREAD} for number, spread in spreads.items()}
                for part, spreads in vars(of_entry).items()
            }
            for name, of_entry in zip(names, comparison.numbers)
        },
        "effects": {
            name: {metric: effect._asdict() for metric, effect in of_entry.items()}
            for name, of_entry in zip(names[1:], comparison.effects)
        },
        "laws": {metric: {"factor": law.factor, "exponent": law.exponent} for metric, law in comparison.laws.items()},
    }


def print_comparison(comparison: Comparison) -> None:
    """Print the differing settings, the numbers and their differences, one column per entry."""
    console, differences = Console(), comparison.differences
    for title, rows, width in (
        ("settings that differ: what is trained", differences.identity, None),
        ("settings that differ: where the data is, and how the run is executed", differences.execution, None),
        ("data that differs (fingerprints)", differences.content, _FINGERPRINT_WIDTH),
    ):
        if rows:
            table = _table(title, comparison.entries)
            for name, row in rows.items():
                table.add_row(name, *(", ".join(text_of((each,))[:width] for each in values) for values in row))
            console.print(table)
    if len(comparison.entries) > 1 and not any(vars(differences).values()):
        console.print("no setting differs")
    console.print(_numbers_table(comparison))
    if any(comparison.effects):
        table = _table(f"differences from {comparison.entries[0].name} [95% interval]", comparison.entries[1:])
        for name in dict.fromkeys(name for of_entry in comparison.effects for name in of_entry):
            table.add_row(name, *(_effect_cell(of_entry.get(name)) for of_entry in comparison.effects))
        table.caption = Text("; ".join(_bases(comparison)))
        console.print(table)
    for line in _warnings(comparison):
        console.print(Text(printable(line)))
    for metric, law in comparison.laws.items():
        say(f"law       {metric} = {law}, through the best of {len(law.points)} budgets")


def write(target: epath.Path, comparison: Comparison, metrics: Sequence[str] = ()) -> None:
    """Write a CSV table of held-out metrics, by default of all and of probes."""
    if metrics:
        chosen = [{name: each.heldout[name] for name in metrics if name in each.heldout} for each in comparison.numbers]
        numbers = [Numbers(heldout, {}, each.spent) for heldout, each in zip(chosen, comparison.numbers, strict=True)]
        effects = [
            {name: effect for name, effect in of_entry.items() if name in metrics} for of_entry in comparison.effects
        ]
        comparison = comparison._replace(numbers=numbers, effects=effects)
    text = as_csv(comparison).encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    storage.retry(lambda: storage.write_bytes(target, text), target)


def _by_entry(comparison: Comparison) -> Iterator[tuple[Entry, Numbers, dict[str, Effect]]]:
    """Yield each entry with its numbers and effects; the first entry has no effects."""
    return zip(comparison.entries, comparison.numbers, [{}, *comparison.effects], strict=True)


def as_csv(comparison: Comparison) -> str:
    """Return a line for each run and metric, unrounded; the differences are from the first run.

    `n` and `n_first` are the numbers of seeds. `other_task` lists why a metric is not compared with the first run's.
    `unfinished` has the step of the last evaluation of runs that have not finished.
    """
    rows: list[tuple] = [_COLUMNS + _EFFECT_COLUMNS]
    for entry, of_entry, effects in _by_entry(comparison):
        parameters = of_entry.spent["parameters"].mean if "parameters" in of_entry.spent else None
        for metric, spread in of_entry.measured.items():
            start = (entry.name, _progress_of(entry), parameters, metric, len(spread.values))
            compared: tuple = (None,) * len(_EFFECT_COLUMNS)
            if effect := effects.get(metric):
                compared = (effect.value, effect.low, effect.high, effect.p, effect.covers, effect.paired)
                compared += effect.seeds[0], "; ".join(effect.task_changes)
            rows.append((*start, spread.mean, spread.deviation, *(spread.interval or (None, None)), *compared))
    return csv_text(("" if cell is None else cell for cell in row) for row in rows)


def _warnings(comparison: Comparison) -> list[str]:
    """Return a line per entry that has not finished, and per reason why metrics are not compared with the first's."""
    lines = [f"{each.name} has not finished: {at}" for each in comparison.entries if (at := _progress_of(each))]
    first, *others = comparison.entries
    for entry, effects in zip(others, comparison.effects):
        reasons: dict[tuple[str, ...], list[str]] = {}
        for name, effect in effects.items():
            if effect.task_changes:
                reasons.setdefault(effect.task_changes, []).append(name)
        lines += [
            f"{OTHER_TASK} {', '.join(names)}: {entry.name} is not compared with {first.name}, whose held-out task is "
            f"another one ({'; '.join(changes)})"
            for changes, names in reasons.items()
        ]
    return lines


def _progress_of(entry: Entry) -> str:
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


def _numbers_table(comparison: Comparison) -> Table:
    table = _table("numbers; over n seeds mean ± deviation", comparison.entries)

    def add(title: str, part: str, name: str, pattern: str = _METRIC) -> None:
        has_count = part in ("heldout", "probes")
        cells = (
            _cell(getattr(numbers, part).get(name), len(entry.runs), effects.get(name), pattern, has_count)
            for entry, numbers, effects in _by_entry(comparison)
        )
        table.add_row(title, *cells)

    for title, part in (("held out", "heldout"), ("probe", "probes"), ("baseline", "baselines")):
        for name in dict.fromkeys(name for numbers in comparison.numbers for name in getattr(numbers, part)):
            add(f"{title}: {name}", part, name)
        table.add_section()
    table.add_row("finished", *map(_finished, comparison.entries))
    for name, (title, pattern) in _SPENT.items():
        add(title, "spent", name, pattern)
    # The caption explains only the kinds of interval that the table has.
    spreads = [spread for numbers in comparison.numbers for spread in numbers.measured.values() if spread.interval]
    kinds = {len(spread.values) > 1 for spread in spreads}
    meanings = {True: "with several seeds, of the mean over other seeds", False: "with one run, over other examples"}
    if kinds:
        table.caption = Text(f"[95% interval]: {'; '.join(meanings[kind] for kind in sorted(kinds, reverse=True))}")
    return table


def _bases(comparison: Comparison) -> list[str]:
    """Return for each kind of effect what its interval is computed from, and the scope to which it generalizes."""
    effects = [effect for of_entry in comparison.effects for effect in of_entry.values()]
    return list(dict.fromkeys(map(_basis, effects)))


def _basis(effect: Effect) -> str:
    if effect.task_changes:
        return f"{OTHER_TASK} another held-out task, see below"
    if not effect.at_one_step:
        return "no interval or p-value of runs that have not finished and were evaluated at different steps"
    if effect.covers == EXAMPLES:
        return f"interval for {EXAMPLES}; no p-value of the methods, which takes several seeds on each side"
    if effect.covers == SEEDS:
        return (
            f"interval and p-value over seeds, on these held-out rows: {effect.test}, not corrected for several metrics"
        )
    return (
        "no interval: it takes several seeds that vary on each side, or scores of 20 examples of a finished run on each"
    )


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


def _cell(
    spread: Spread | None, runs: int, effect: Effect | None, pattern: str = _METRIC, has_count: bool = False
) -> str:
    """Return mean ± deviation [interval] of an entry with so many runs, marked if its task is another one."""
    if spread is None:
        return "-"
    text, count = pattern.format(spread.mean), len(spread.values)
    text += OTHER_TASK if effect and effect.task_changes else ""
    # Equal values, such as the number of steps, have no deviation worth printing.
    if len(set(spread.values)) > 1:
        text += f" ± {pattern.format(spread.deviation)}"
    if pattern == _METRIC and (interval := spread.interval):
        text += " [{}, {}]".format(*map(pattern.format, interval))
    text += "" if count == runs else f" ({count} of {runs})"
    return f"{text} n={count}" if has_count and count > 1 else text


def _finished(entry: Entry) -> str:
    if len(entry.runs) > 1:
        return f"{sum(run.finished for run in entry.runs)} of {len(entry.runs)} seeds"
    return "yes" if entry.runs[0].finished else f"no, of {entry.runs[0].planned_steps:,} steps"
