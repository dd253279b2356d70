"""The spread of results over seeds: fine-tuning scores vary with it (Mosbach et al., 2021, arXiv 2006.04884)."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def over_seeds(figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the spread of the results of runs that differ in the seed only.

    Args:
      figures: `summary.json` of each run, in the order of the seeds.

    Returns:
      {`metrics`: {name: {`values`, `mean`, `deviation`, `median`, `best`}}, `failed`: number of runs that did not beat
      the class that is most frequent in the training file, or None without classes}. See `deviation`. A run may lack a
      metric, such as a precision if it has predicted nothing, or have one that is not finite: its value is None, and
      the statistics are those of the others.
    """
    metrics = {}
    for name in dict.fromkeys(name for summary in figures for name in summary["eval"]):
        values = [_finite(summary["eval"].get(name)) for summary in figures]
        numbers = [value for value in values if value is not None]
        metrics[name] = {
            "values": values,
            "mean": statistics.fmean(numbers) if numbers else None,
            "deviation": deviation(numbers) if numbers else None,
            "median": statistics.median(numbers) if numbers else None,
            "best": (min if name.endswith("_loss") else max)(numbers, default=None),
        }
    failed = None
    if "accuracy" in metrics and "majority_accuracy" in figures[0]["baseline"]:
        majorities = [summary["baseline"]["majority_accuracy"] for summary in figures]
        pairs = zip(metrics["accuracy"]["values"], majorities, strict=True)
        failed = sum(accuracy is None or accuracy <= majority for accuracy, majority in pairs)
    return {"metrics": metrics, "failed": failed}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample (n - 1), 0 for a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def print_seeds(spread: dict[str, Any], console: Console | None = None) -> None:
    """Print `over_seeds` as a table."""
    count = max(len(metric["values"]) for metric in spread["metrics"].values())
    table = Table(title=f"held out, {count} seeds")
    table.add_column("")
    columns = ("mean", "deviation", "median", "best")
    for column in columns:
        table.add_column(column, justify="right")
    for name, metric in spread["metrics"].items():
        having = sum(value is not None for value in metric["values"])
        label = name if having == count else f"{name} ({having} of {count})"
        table.add_row(label, *("-" if metric[column] is None else f"{metric[column]:.4f}" for column in columns))
    if spread["failed"] is not None:
        table.caption = f"{spread['failed']} of {count} did not beat the most frequent class"
    (console or Console()).print(table)
