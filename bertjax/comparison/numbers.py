"""Results and costs of runs at their newest step, aggregated over an entry's seeds."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import cast

import numpy as np

from bertjax.comparison import resampling
from bertjax.comparison.runs import Entry, Run
from bertjax.training.results.curves import heldout_metrics, points_of
from bertjax.training.results.scores import Scores
from bertjax.training.results.seeds import deviation, interval_of_mean, vary


@dataclasses.dataclass(frozen=True)
class Spread:
    """A number over the runs of an entry that have it.

    Attributes:
      values: one value per run, at least one.
      scores: scores by example for each run; empty unless all runs have them.
      at_one_step: whether all values are final, or from the same step.
    """

    values: tuple[float, ...]
    scores: tuple[Scores, ...] = ()
    at_one_step: bool = True

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation; None for a single value."""
        return deviation(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% interval: over other seeds (of the mean, t distribution), or over other examples if there is one run.

        None if seeds do not vary or were evaluated at different steps, and for a single value with too few example
        scores.
        """
        if len(self.values) > 1:
            if not (self.at_one_step and vary(self.values)):
                return None
            low, high = interval_of_mean(self.values)
            return float(low), float(high)
        # A single run does not show how seeds vary, but its examples can be resampled.
        if not self.scores or not are_paired(self.scores):
            return None
        _, low, high = resampling.estimate(self.scores[0].sums, resampling.ratio)
        return float(low), float(high)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """An entry's numbers, by name.

    Attributes:
      heldout: metrics from the last evaluation.
      probes: probe metrics, by `probe/metric`.
      baselines: model-free baselines, on the same rows and for probes.
      spent: `parameters`, `evaluated_at` (a step), `steps`, `tokens`, `flops`, `seconds`, `tokens_per_second`.
    """

    heldout: dict[str, Spread]
    baselines: dict[str, Spread]
    spent: dict[str, Spread]
    probes: dict[str, Spread] = dataclasses.field(default_factory=dict)

    @property
    def measured(self) -> dict[str, Spread]:
        """The numbers to compare: held-out metrics and probe metrics."""
        return self.heldout | self.probes


def numbers_of(entry: Entry) -> Numbers:
    """Return an entry's numbers."""
    evaluations = [last_evaluation(run) for run in entry.runs]
    probes, heldout = _of_probes(entry), {}
    for name, spread in _over([metrics for _, metrics in evaluations]).items():
        scores = tuple(run.scores[name] for run in entry.runs if name in run.scores)
        is_complete = len(scores) == len(spread.values) == len(entry.runs)
        heldout[name] = Spread(spread.values, scores if is_complete else (), is_at_one_step(entry))
    # A probe's majority class depends on the labels only, so it is a baseline.
    of_probes = {name: spread for name, spread in probes.items() if name.endswith("/majority")}
    return Numbers(
        heldout=heldout,
        baselines=_over([run.summary.get("baseline", {}) for run in entry.runs]) | of_probes,
        probes={name: spread for name, spread in probes.items() if name not in of_probes},
        spent=_over([_spent(run, step) for run, (step, _) in zip(entry.runs, evaluations)]),
    )


def are_paired(scores: Sequence[Scores]) -> bool:
    """Return whether scores cover the same examples, enough to resample, each with a weight.

    A metric such as precision has no weight where nothing was predicted, and no value if all examples are of this kind.
    """
    first = scores[0].ids
    if len(first) < resampling.LEAST_EXAMPLES:
        return False
    return all(np.array_equal(first, of_run.ids) and (of_run.sums[:, 1] > 0).all() for of_run in scores)


def _of_probes(entry: Entry) -> dict[str, Spread]:
    names = dict.fromkeys(name for run in entry.runs for name in run.probes)
    spreads = {}
    for name in names:
        scores = tuple(run.probes[name] for run in entry.runs if name in run.probes)
        values = tuple(float(np.divide(*of_run.sums.sum(axis=0))) for of_run in scores)
        spreads[name] = Spread(values, scores, is_at_one_step(entry))
    return spreads


def is_at_one_step(*entries: Entry) -> bool:
    """Return whether all runs with an evaluation have finished, or have it at the same step.

    Otherwise their metrics differ by the number of steps, whatever else differs.
    """
    runs = [run for entry in entries for run in entry.runs if last_evaluation(run)[1]]
    return all(run.finished for run in runs) or len({last_evaluation(run)[0] for run in runs}) == 1


def last_evaluation(run: Run) -> tuple[int | None, dict[str, float | None]]:
    """Return step and metrics of the newest evaluation; (None, {}) without one."""
    # Not every record has an evaluation: find the newest one that has.
    for record in reversed(run.records):
        if metrics := heldout_metrics(record):
            return record.get("step"), metrics
    return None, {}


def _spent(run: Run, evaluated_at: int | None) -> dict[str, float | None]:
    """Return a run's costs up to its newest record, taken from its summary if that has the same step."""
    newest = run.records[-1] if run.records else {}
    # The summary of an evaluation has the number of trained parameters.
    spent = {"parameters": run.summary.get("parameters"), "evaluated_at": evaluated_at, "steps": newest.get("step")}
    spent |= {name: newest.get(name) for name in ("tokens", "flops", "seconds")}
    if run.summary and run.summary.get("steps") == newest.get("step"):
        return spent | {name: run.summary[name] for name in ("seconds", "tokens_per_second")}
    # Without a summary, the speed is the average over the whole run, without the tokens of a branch's trunk.
    trunk = newest.get("trunk_tokens", 0.0)
    if rates := [(tokens - trunk) / seconds for tokens, seconds in points_of([newest], "tokens", "seconds") if seconds]:
        spent["tokens_per_second"] = rates[0]
    return spent


def _over(by_run: list[dict[str, float | None]]) -> dict[str, Spread]:
    names = dict.fromkeys(name for numbers in by_run for name in numbers)
    # None marks a number that was not finite; it is left out.
    values = {name: tuple(numbers[name] for numbers in by_run if numbers.get(name) is not None) for name in names}
    return {name: Spread(cast(tuple[float, ...], of_runs)) for name, of_runs in values.items() if of_runs}
