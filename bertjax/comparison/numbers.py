"""The results and costs of runs: the numbers of the newest step, over the seeds of an entry."""

import dataclasses
import statistics

import numpy as np

from bertjax import resampling
from bertjax.comparison.runs import Entry, Run
from bertjax.training.results.curves import HELDOUT, points_of
from bertjax.training.results.seeds import deviation


@dataclasses.dataclass(frozen=True)
class Spread:
    """A number over the runs of an entry that have it.

    Attributes:
      values: the values of the runs, at least one.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """Standard deviation of a sample; 0 for a single value."""
        return deviation(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% interval of the mean by resampling the seeds; None for a single value.

        Runs do not store the scores of their held-out examples, so it does not cover the choice of examples.
        """
        if len(self.values) < 2:
            return None
        _, low, high = resampling.estimate(np.array(self.values)[:, None])
        return float(low), float(high)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The numbers of an entry, by name.

    Attributes:
      heldout: metrics of the last evaluation.
      baselines: baselines of finished runs on the same rows.
      spent: `evaluated_at` (a step), `steps`, `tokens`, `flops`, `seconds`, `tokens_per_second`.
    """

    heldout: dict[str, Spread]
    baselines: dict[str, Spread]
    spent: dict[str, Spread]


def numbers_of(entry: Entry) -> Numbers:
    """Return the numbers of an entry."""
    evaluations = [_last_evaluation(run) for run in entry.runs]
    return Numbers(
        heldout=_over([metrics for _, metrics in evaluations]),
        baselines=_over([run.summary.get("baseline", {}) for run in entry.runs]),
        spent=_over([{"evaluated_at": step} | _spent(run) for run, (step, _) in zip(entry.runs, evaluations)]),
    )


def _last_evaluation(run: Run) -> tuple[int | None, dict[str, float | None]]:
    for record in reversed(run.records):
        metrics = {key.removeprefix(HELDOUT): value for key, value in record.items() if key.startswith(HELDOUT)}
        if metrics:
            return record.get("step"), metrics
    return None, {}


def _spent(run: Run) -> dict[str, float]:
    """Return what a run spent up to its newest line of metrics; for a finished run, the values of its summary."""
    newest = run.records[-1] if run.records else {}
    spent = {"steps": newest.get("step"), **{name: newest.get(name) for name in ("tokens", "flops", "seconds")}}
    if run.summary.get("steps") == newest.get("step"):
        return spent | {name: run.summary[name] for name in ("seconds", "tokens_per_second")}
    if rates := [tokens / seconds for tokens, seconds in points_of([newest], "tokens", "seconds") if seconds]:
        spent["tokens_per_second"] = rates[0]
    return spent


def _over(by_run: list[dict[str, float | None]]) -> dict[str, Spread]:
    names = dict.fromkeys(name for numbers in by_run for name in numbers)
    values = {name: tuple(numbers[name] for numbers in by_run if numbers.get(name) is not None) for name in names}
    return {name: Spread(of_runs) for name, of_runs in values.items() if of_runs}
