"""The spread of results over seeds: fine-tuning scores vary with it (Mosbach et al., 2021, arXiv 2006.04884).

Runs cost hours, so there are few seeds, and resampling few values gives intervals that are too narrow: that of three is
[smallest, largest], which holds the mean in 75% of cases. Student's t distribution accounts for a deviation that is
itself estimated from few values. It assumes that results scatter normally over seeds.
`python -m benchmarks.seed_intervals` measures how often its intervals and p-values are right.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from bertjax.training.run.tables import Table

# Differences between seeds that are smaller than this share of the values are rounding.
_ROUNDING = 1e-9


class TTest(NamedTuple):
    """The test of a difference of two means.

    Attributes:
      low, high: bounds of the interval of the difference.
      p: two-sided p-value of no difference.
    """

    low: float
    high: float
    p: float


def interval_of_mean(values: np.ndarray, share: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of the t interval of the mean over seeds.

    Args:
      values: [seeds, ...].
      share: confidence level.

    Returns:
      The bounds, [...]; both are the value itself if there is one seed only.
    """
    from scipy import stats

    values = np.asarray(values, np.float64)
    seeds, mean = len(values), values.mean(axis=0)
    if seeds < 2:
        return mean, mean
    half = stats.t.ppf((1 + share) / 2, seeds - 1) * values.std(axis=0, ddof=1) / np.sqrt(seeds)
    return mean - half, mean + half


def t_test(first: Sequence[float], second: Sequence[float], paired: bool, share: float = 0.95) -> TTest | None:
    """Return how well seeds tell two means apart: the interval and the p-value of second - first.

    Runs of the same seeds are paired: they share the order of the data, so a part of the noise cancels. Otherwise equal
    numbers of seeds take the test with a common variance (Student, 1908). With as many seeds on both sides it stays
    near its level also if the variances differ, while the test of Welch (1947) finds too little with two seeds each
    (2.3% of p-values below 0.05 where 5% should be). Different numbers of seeds take Welch's.

    Args:
      first, second: a value for each seed.
      paired: whether values of the same index belong together.
      share: confidence level.

    Returns:
      The test; None if a side has fewer than two seeds, or if values do not vary, so that there is no noise to compare
      a difference with.
    """
    from scipy import stats

    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if min(len(first), len(second)) < 2:
        return None
    spread = np.ptp(second - first) if paired else max(np.ptp(first), np.ptp(second))
    if spread <= _ROUNDING * max(np.abs(first).max(), np.abs(second).max()):
        return None
    has_common_variance = len(first) == len(second)
    result = stats.ttest_rel(second, first) if paired else stats.ttest_ind(second, first, equal_var=has_common_variance)
    low, high = result.confidence_interval(share)
    return TTest(float(low), float(high), float(result.pvalue))


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
            "best": (min if name.endswith(("_loss", "_bits_per_byte")) else max)(numbers, default=None),
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
