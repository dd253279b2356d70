"""Results and costs of runs at their newest step over the seeds of an entry, and differences from the first entry.

What an interval means depends on what was repeated. Several seeds on each side repeat the training, so they say whether
a method is better than another, on these held-out rows. One run on each side repeats nothing but the examples: it says
that these two models differ, and not that the same methods would differ with another seed. Such a p-value is below 0.05
in 81% of comparisons of a method with itself (`benchmarks/seed_intervals.py`), so none is given.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np

from bertjax.comparison import resampling
from bertjax.comparison.runs import Entry, Run
from bertjax.training.results.curves import heldout_metrics, points_of
from bertjax.training.results.heldout_task import heldout_task
from bertjax.training.results.scores import Scores
from bertjax.training.results.seeds import deviation, interval_of_mean, t_test, vary

# What the interval of a difference generalizes to.
SEEDS, EXAMPLES = "seeds", "these two models, other examples"
# Marks a number that is not comparable with that of the first entry.
OTHER_TASK = "*"
_OTHER_EXAMPLES = "the examples that the probe was scored on"
_OTHER_RECORDS = "the records of the held-out file"


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


class Effect(NamedTuple):
    """The difference of a metric between two entries, the second minus the first.

    Attributes:
      value: difference of the means; None if the entries have different held-out tasks.
      low, high: bounds of its 95% interval; None if there are neither seeds nor examples to compute it from.
      p: two-sided p-value of no difference between the methods; None without several seeds on both sides.
      covers: what the interval generalizes to, `SEEDS` or `EXAMPLES`; empty without one.
      paired: whether run by run is compared, each with the run of the same seed.
      seeds: number of runs of the first and of the second entry that have the metric.
      task_changes: why the numbers are not comparable, such as `objective.masking.rate: 0.15 -> 0.4`.
      at_one_step: whether all runs have finished or were evaluated at the same step; without, there is no interval.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    covers: str = ""
    paired: bool = False
    seeds: tuple[int, int] = (1, 1)
    task_changes: tuple[str, ...] = ()
    at_one_step: bool = True

    @property
    def sizes(self) -> str:
        """The numbers of runs: `n=3`, or `n=3 and 5`."""
        first, second = self.seeds
        return f"n={first}" if first == second else f"n={first} and {second}"

    @property
    def test(self) -> str:
        """The name of the test that gave `p`."""
        if self.paired:
            return "paired t test"
        return "t test" if self.seeds[0] == self.seeds[1] else "Welch's t test"


def effects_of(entries: Sequence[Entry], numbers: Sequence[Numbers]) -> list[dict[str, Effect]]:
    """Return {metric of held-out rows or probes: its difference from the first entry} of every further entry."""
    return [
        {
            name: _effect(name, (entries[0], entry), (numbers[0], of_entry))
            for name in of_entry.measured
            if name in numbers[0].measured
        }
        for entry, of_entry in zip(entries[1:], numbers[1:], strict=True)
    ]


def _effect(name: str, entries: tuple[Entry, Entry], numbers: tuple[Numbers, Numbers]) -> Effect:
    first, second = (of_entry.measured[name] for of_entry in numbers)
    changes = _probe_changes(first, second) if name in numbers[0].probes else task_changes(name, *entries)
    seeds = len(first.values), len(second.values)
    if changes:
        return Effect(None, seeds=seeds, task_changes=changes)
    if not is_at_one_step(*entries):
        return Effect(second.mean - first.mean, seeds=seeds, at_one_step=False)
    seeds_of_first, seeds_of_second = ([run.settings["seed"] for run in entry.runs] for entry in entries)
    return effect_of(first, second, len(seeds_of_first) if seeds_of_first == seeds_of_second else 0)


def task_changes(metric: str, *entries: Entry) -> tuple[str, ...]:
    """Return by what the held-out task of a metric differs between the runs of entries: settings, or its records."""
    runs = [run for entry in entries for run in entry.runs]
    tasks = [heldout_task(run.settings, run.identity, metric) for run in runs]
    changes = tuple(dict.fromkeys(change for task in tasks[1:] for change in tasks[0].changes(task)))
    if changes or all(task.fingerprint == tasks[0].fingerprint for task in tasks):
        return changes
    # The fingerprint is that of all data. It differs by the tokenizer as well, which hides that a file was changed.
    ids = [of_run for run in runs if (of_run := _records_of(run, metric)) is not None]
    return () if all(of_run == ids[0] for of_run in ids) else (_OTHER_RECORDS,)


def _records_of(run: Run, metric: str) -> list[int] | None:
    """Return ids of the records of the held-out file of a metric; None if no metric of it is known by record."""
    place = metric.rpartition("/")[0]
    by_record = (scores for name, scores in run.scores.items() if name.rpartition("/")[0] == place and scores.by_record)
    return next((scores.ids.tolist() for scores in by_record), None)


def _probe_changes(first: Spread, second: Spread) -> tuple[str, ...]:
    """Return whether a probe was scored on other examples: `bertjax probe` reads the files that a user names."""
    ids = [of_run.ids.tolist() for of_run in (*first.scores, *second.scores)]
    return () if all(each == ids[0] for each in ids) else (_OTHER_EXAMPLES,)


def effect_of(first: Spread, second: Spread, shared_seeds: int) -> Effect:
    """Return the difference of two sides of one held-out task.

    Several runs on each side are compared by a t test over seeds, one run on each side by the paired bootstrap over
    examples. Seeds and examples are not resampled together (Sellam et al., 2022, MultiBERTs, arXiv 2106.16163): with
    three seeds no resample crosses zero if all three differences have one sign, which chance alone brings in 25% of
    comparisons.

    Args:
      first, second: the values of each side.
      shared_seeds: number of seeds that both sides have. Only if neither lacks a value, values belong together.
    """
    seeds = len(first.values), len(second.values)
    paired, value = seeds == (shared_seeds, shared_seeds), second.mean - first.mean
    if seeds == (1, 1) and first.scores and second.scores and are_paired((*first.scores, *second.scores)):
        drawn = resampling.difference(first.scores[0].sums, second.scores[0].sums, resampling.ratio)
        return Effect(value, float(drawn.low), float(drawn.high), None, EXAMPLES, paired, seeds)
    if test := t_test(first.values, second.values, paired):
        return Effect(value, *test, SEEDS, paired, seeds)
    return Effect(value, paired=paired, seeds=seeds)
