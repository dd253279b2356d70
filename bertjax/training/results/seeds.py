"""The same run with several seeds: what fine-tuning scores are worth (Mosbach et al., 2021, arXiv 2006.04884)."""

import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def over_seeds(figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How the figures of equal runs with different seeds are spread.

    Args:
      figures: `summary.json` of each run, in the order of the seeds.

    Returns:
      {`metrics`: {name: {`values`, `mean`, `deviation`, `median`, `max`}}, `failed`: how many did not beat the class
      that is most frequent in the training file, or None where there are no classes}. The deviation is that of a
      sample (n - 1), 0 for a single run.
    """
    metrics = {}
    for name in figures[0]["eval"]:
        values = [each["eval"][name] for each in figures]
        metrics[name] = {
            "values": values,
            "mean": statistics.fmean(values),
            "deviation": deviation(values),
            "median": statistics.median(values),
            "max": max(values),
        }
    failed = None
    if "accuracy" in metrics and "majority_accuracy" in figures[0]["baseline"]:
        failed = sum(each["eval"]["accuracy"] <= each["baseline"]["majority_accuracy"] for each in figures)
    return {"metrics": metrics, "failed": failed}


def deviation(values: Sequence[float]) -> float:
    """That of a sample (n - 1), 0 for a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def print_seeds(spread: dict[str, Any], console: Console | None = None) -> None:
    """Prints `over_seeds` as a table."""
    count = max(len(each["values"]) for each in spread["metrics"].values())
    table = Table(title=f"held out, {count} seeds")
    table.add_column("")
    columns = ("mean", "deviation", "median", "max")
    for column in columns:
        table.add_column(column, justify="right")
    for name, each in spread["metrics"].items():
        table.add_row(name, *(f"{each[column]:.4f}" for column in columns))
    if spread["failed"] is not None:
        table.caption = f"{spread['failed']} of {count} did not beat the most frequent class"
    (console or Console()).print(table)
