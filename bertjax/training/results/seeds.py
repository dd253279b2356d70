"""Statistics over seeds. Fine-tuning results vary a lot between seeds (Mosbach et al., 2021, arXiv 2006.04884).

Runs cost hours, so there are few seeds. Resampling few values gives intervals that are too narrow: for three values it
gives [smallest, largest], which contains the mean in 75% of cases. Student's t distribution accounts for estimating the
deviation from few values, too. It assumes that results are normally distributed over seeds.
`python -m benchmarks.seed_intervals` measures how often the intervals and p-values are right.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from etils import epath
from numpy.typing import ArrayLike
from rich.console import Console

from bertjax.training.results.scores import is_lower_better
from bertjax.training.run.tables import Table
from bertjax.training.run.workdir import Workdir, read_jsonl, write_json

if TYPE_CHECKING:  # a summary needs no JAX
    from bertjax.config.config import Config

# File of the scores over seeds.
SUMMARY = "seeds.json"
# Relative differences between seeds below this are rounding errors.
_ROUNDING = 1e-9
_CONFIDENCE = 0.95  # of intervals


class TTest(NamedTuple):
    """Result of a t-test on the difference between two means.

    Attributes:
      low, high: confidence interval of the difference.
      p: two-sided p-value under the hypothesis of no difference.
    """

    low: float
    high: float
    p: float


def interval_of_mean(values: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return the 95% t-interval of the mean over seeds.

    Args:
      values: [seeds, ...].

    Returns:
      Lower and upper bound, [...]; with one seed, both equal its value.
    """
    from scipy import stats  # slow to import

    values = np.asarray(values, np.float64)
    seeds, mean = len(values), values.mean(axis=0)
    # One seed gives no estimate of the deviation: show a point rather than an infinite interval.
    if seeds < 2:
        return mean, mean
    half = stats.t.ppf((1 + _CONFIDENCE) / 2, seeds - 1) * values.std(axis=0, ddof=1) / np.sqrt(seeds)
    return mean - half, mean + half


def vary(*sides: Sequence[float]) -> bool:
    """Return whether the values of a side differ by more than rounding."""
    largest = max(np.abs(side).max() for side in sides)
    return any(np.ptp(side) > _ROUNDING * largest for side in sides)


def t_test(first: Sequence[float], second: Sequence[float], paired: bool) -> TTest | None:
    """Test whether two means differ: 95% confidence interval and p-value of second - first.

    Runs with equal seeds are paired, because they share the data order and part of the noise cancels. Otherwise, equal
    numbers of seeds use the test with a common variance (Student, 1908): on balanced samples it keeps its level even if
    the variances differ, whereas Welch's test (1947) is too conservative with two seeds each (2.3% of p-values are
    below 0.05 instead of 5%). Different numbers of seeds use Welch's test.

    Args:
      first, second: one value per seed.
      paired: whether values with the same index belong together.

    Returns:
      The test; None if a side has fewer than two seeds, or if the values do not vary, so that there is no noise to
      compare the difference with.
    """
    from scipy import stats

    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if min(len(first), len(second)) < 2:
        return None
    # Without any spread, the test would divide by 0 and call any difference significant.
    spread = np.ptp(second - first) if paired else max(np.ptp(first), np.ptp(second))
    if spread <= _ROUNDING * max(np.abs(first).max(), np.abs(second).max()):
        return None
    has_common_variance = len(first) == len(second)
    result = stats.ttest_rel(second, first) if paired else stats.ttest_ind(second, first, equal_var=has_common_variance)
    low, high = result.confidence_interval(_CONFIDENCE)
    return TTest(float(low), float(high), float(result.pvalue))


def over_seeds(figures: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """Summarize runs that differ only in the seed.

    Args:
      figures: content of each run's `summary.json`, in seed order; None for a run that failed.

    Returns:
      {`metrics`: {name: {`values`, `mean`, `deviation`, `median`, `best`}}, `failed`: number of runs that did not beat
      the most frequent class in the training file, or None without classes}. If a run lacks a metric (such as a
      precision without any predictions) or its metric is not finite, its value is None, and the statistics leave it
      out. Metrics of a moving average of the weights are called `ema/NAME`.
    """
    metrics, runs = {}, [summary or {"eval": {}, "baseline": {}} for summary in figures]
    scored = [
        summary["eval"] | {f"ema/{name}": value for name, value in summary.get("eval_ema", {}).items()}
        for summary in runs
    ]
    # A metric may be missing in the first run: collect the names of all, in order.
    for name in dict.fromkeys(name for scores in scored for name in scores):
        given = (scores.get(name) for scores in scored)
        values = [value if value is not None and math.isfinite(value) else None for value in given]
        numbers, best = [value for value in values if value is not None], min if is_lower_better(name) else max
        functions = {"mean": statistics.fmean, "deviation": deviation, "median": statistics.median, "best": best}
        summary = {each: function(numbers) if numbers else None for each, function in functions.items()}
        metrics[name] = {"values": values, **summary}
    # Fine-tuning sometimes fails completely and stays at the majority class (Mosbach et al., 2021).
    failed = None
    majorities = [summary["baseline"].get("majority_accuracy") for summary in runs]
    if "accuracy" in metrics and any(majority is not None for majority in majorities):
        pairs = zip(metrics["accuracy"]["values"], majorities, strict=True)
        failed = sum(accuracy is None or accuracy <= majority for accuracy, majority in pairs)
    return {"metrics": metrics, "failed": failed}


def write(root: epath.Path, figures: Sequence[dict[str, Any] | None], failures: dict[str, str]) -> dict[str, Any]:
    """Write `seeds.json` to the folder of the seeds, and return its content.

    Args:
      root: the folder.
      figures: see `over_seeds`.
      failures: {folder: why its run failed}.
    """
    spread = over_seeds(figures) | {"failures": failures}
    write_json(root / SUMMARY, spread)
    return spread


def lines_of(root: epath.Path, spread: dict[str, Any]) -> list[str]:
    """Print the content of `seeds.json` as a table, and return lines with failures and files."""
    print_seeds(spread)
    failed = spread["failures"].items()
    lines = [f"warning   {folder} failed: {why}; the table is of the others" for folder, why in failed]
    return [*lines, f"runs      {root}/seed=*", f"figures   {root / SUMMARY}"]


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1); None for a single value, which says nothing about others."""
    return statistics.stdev(values) if len(values) > 1 else None


def print_seeds(spread: dict[str, Any], console: Console | None = None) -> None:
    """Print `over_seeds` as a table."""
    count = max(len(metric["values"]) for metric in spread["metrics"].values())
    columns = ("mean", "deviation", "median", "best")
    table = Table("", *columns, title=f"held out, {count} seeds", justify="right")
    for name, metric in spread["metrics"].items():
        having = sum(value is not None for value in metric["values"])
        label = name if having == count else f"{name} ({having} of {count})"
        table.add_row(label, *("-" if metric[column] is None else f"{metric[column]:.4f}" for column in columns))
    if spread["failed"] is not None:
        table.caption = f"{spread['failed']} of {count} did not beat the most frequent class"
    (console or Console()).print(table)


def better_checkpoint(files: Workdir, config: "Config", metrics: Mapping[str, float]) -> str:
    """Return a line with the best kept checkpoint and both scores; empty if none scores better than the last step.

    Checkpoints from before pruning has ended are left out, because they are larger models.

    Args:
      files: workdir of the finished run.
      config: configuration of the run.
      metrics: metrics from the last evaluation.
    """
    name, sign = _best_metric(config)
    kept, last = files.saved_steps(), metrics.get(name)
    # Only steps with a checkpoint can be used. A step has no score if it was not finite, or before pruning has ended.
    scores = config.eval.scores(read_jsonl(files.evaluations, "step", "score"))
    scores = {step: score for step, score in scores.items() if step in kept and score is not None}
    best = min(scores, key=scores.__getitem__, default=None)
    if last is None or best is None or scores[best] >= sign * last:
        return ""
    return f"{files.root}@{best} has {name} {sign * scores[best]:.4f}; the export is the last step, with {last:.4f}"


def average_scores(config: "Config", figures: Mapping[str, Any]) -> tuple[str, bool]:
    """Return a text with the score of the moving average beside the last step's, and whether the average is better.

    Args:
      config: configuration of the run, with `optimizer.ema_decay`.
      figures: its figures, as in `summary.json`.
    """
    name, sign = _best_metric(config)
    average, last = (figures[part].get(name) for part in ("eval_ema", "eval"))
    if average is None or last is None:
        return f"no {name}", False
    # The last weights may score NaN after a divergence, and no comparison with NaN is true.
    is_better = math.isfinite(average) and not sign * last <= sign * average
    return f"{name} {average:.4f}, and {last:.4f} in export", is_better


def _best_metric(config: "Config") -> tuple[str, int]:
    """Return the metric that ranks checkpoints, and 1 if lower is better, else -1."""
    name = config.qualified(config.task_name, config.task.objective.best_metric)
    return name, 1 if is_lower_better(name) else -1
