"""The spread of results over seeds: fine-tuning scores vary with it (Mosbach et al., 2021, arXiv 2006.04884)."""

import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from bertjax.training.run.tables import Table


def over_seeds(figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the spread of the results of runs that differ in the seed only.

    Args:
      figures: `summary.json` of each run, in the order of the seeds.

    Returns:
      {`metrics`: {name: {`values`, `mean`, `deviation`, `median`, `best`}}, `failed`: number of runs that did not beat
      the class that is most frequent in the training file, or None without classes}. See `deviation`.
    """
    metrics = {}
    for name in figures[0]["eval"]:
        values = [summary["eval"][name] for summary in figures]
        metrics[name] = {
            "values": values,
            "mean": statistics.fmean(values),
            "deviation": deviation(values),
            "median": statistics.median(values),
            "best": min(values) if name.endswith("_loss") else max(values),
        }
    failed = None
    if "accuracy" in metrics and "majority_accuracy" in figures[0]["baseline"]:
        failed = sum(summary["eval"]["accuracy"] <= summary["baseline"]["majority_accuracy"] for summary in figures)
    return {"metrics": metrics, "failed": failed}


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
        table.add_row(name, *(f"{metric[column]:.4f}" for column in columns))
    if spread["failed"] is not None:
        table.caption = f"{spread['failed']} of {count} did not beat the most frequent class"
    (console or Console()).print(table)
