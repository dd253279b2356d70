"""How much the metrics of runs differ from those of the first: differences with intervals and p-values."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertjax import resampling
from bertjax.comparison.numbers import Numbers, Spread, are_paired, by_example
from bertjax.comparison.runs import Entry

_SHARE = 0.95


class Effect(NamedTuple):
    """The difference of a metric between two entries, the second minus the first.

    Attributes:
      value: difference of the means.
      low, high: bounds of its 95% interval; None if there are neither seeds nor examples to draw from.
      p: two-sided p-value of no difference; None without an interval.
      covers: what the interval generalizes to: `seeds and examples`, `examples` or `seeds`; empty without one.
      paired: whether run by run is compared, each with the run of the same seed.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    covers: str = ""
    paired: bool = False


def effects_of(entries: Sequence[Entry], numbers: Sequence[Numbers]) -> list[dict[str, Effect]]:
    """Return {metric of held-out rows or probes: its difference from the first entry} of every further entry."""
    return [
        {
            name: _effect(numbers[0].measured[name], spread, _shared_seeds(entries[0], entry))
            for name, spread in of_entry.measured.items()
            if name in numbers[0].measured
        }
        for entry, of_entry in zip(entries[1:], numbers[1:], strict=True)
    ]


def _shared_seeds(*entries: Entry) -> int:
    """Return the number of seeds if the entries have the same ones in the same order, else 0."""
    first, *others = ([run.settings["seed"] for run in entry.runs] for entry in entries)
    return len(first) if all(seeds == first for seeds in others) else 0


def _effect(first: Spread, second: Spread, seeds_of_both: int) -> Effect:
    """Return the multibootstrap if both sides have scores of the same examples, else a t-test over the seeds.

    Args:
      first, second: the values of each side.
      seeds_of_both: the number of seeds that both sides have. Only if neither lacks a value, values belong together.
    """
    paired = len(first.values) == len(second.values) == seeds_of_both
    value, seeds = second.mean - first.mean, (len(first.values), len(second.values))
    if first.scores and second.scores and are_paired((*first.scores, *second.scores)):
        sides = by_example(first.scores), by_example(second.scores)
        drawn = resampling.difference(*sides, resampling.ratio, paired_seeds=paired, share=_SHARE)
        covers = "seeds and examples" if max(seeds) > 1 else "examples"
        return Effect(value, float(drawn.low), float(drawn.high), float(drawn.p), covers, paired)
    if min(seeds) < 2:
        return Effect(value, paired=paired)
    return _t_test(np.array(first.values), np.array(second.values), paired)


def _t_test(first: np.ndarray, second: np.ndarray, paired: bool) -> Effect:
    """Return the paired t-test, or that of Welch (1947), which assumes no equal variances."""
    from scipy import stats

    value = float(second.mean() - first.mean())
    is_constant = np.ptp(second - first) == 0 if paired else np.ptp(first) == np.ptp(second) == 0
    if is_constant:  # the variance is 0, and so is the width of the interval
        return Effect(value, value, value, 1.0 if value == 0 else 0.0, "seeds", paired)
    result = stats.ttest_rel(second, first) if paired else stats.ttest_ind(second, first, equal_var=False)
    low, high = result.confidence_interval(_SHARE)
    return Effect(value, float(low), float(high), float(result.pvalue), "seeds", paired)
