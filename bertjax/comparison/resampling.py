"""The (paired) bootstrap: confidence intervals and p-values for one or two models by resampling examples.

Examples are drawn with replacement. The interval accounts for the choice of examples, but not for the seed; for seeds,
of which there are few, see `bertjax.training.results.seeds`.

The plain percentile interval is too narrow for few examples: with 22 it covers the truth in 90% of cases instead of
95%. Its levels are therefore widened by the ratio of Student's t to the normal distribution ("expanded percentile
interval", Hesterberg, 2015, "What Teachers Should Know About the Bootstrap", arXiv 1411.5279, section 5.3), and
p-values accordingly.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

# Numbers per block of resamples (32 MB).
_BLOCK = 1 << 22

Metric = Callable[[np.ndarray], np.ndarray]


# With fewer examples (or batches, in pretraining) the interval is too narrow.
LEAST_EXAMPLES = 20


class Difference(NamedTuple):
    """Difference between two metrics, second minus first, with its interval; shapes are the leading axes.

    Attributes:
      value: the difference on all examples.
      low, high: bounds of the percentile interval.
      p: two-sided p-value for no difference: twice the share of resamples on the rarer side of zero, at most 1. The
        measured sample counts as one more resample, so p is never 0.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray


def estimate(
    values: np.ndarray, metric: Metric, resamples: int = 1000, share: float = 0.95
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a metric on all examples, and the bounds of its percentile interval.

    Args:
      values: [..., M, C], C values per example.
      metric: maps sums over examples [..., C] to [...], such as `ratio`.
      resamples: number of resamples.
      share: confidence level.

    Raises:
      ValueError: the metric of a resample is not finite.
    """
    drawn = np.concatenate([_metric_of(values, metric, counts_RM) for counts_RM in _draws(values, resamples)])
    low, high = _bounds(drawn, values.shape[-2], share)
    return _measured(values, metric), low, high


def difference(first: np.ndarray, second: np.ndarray, metric: Metric, resamples: int = 1000) -> Difference:
    """Compare two metrics, second minus first, with interval and p-value, by the paired bootstrap.

    Both sides use the same examples in each resample (Koehn, 2004, "Statistical Significance Tests for Machine
    Translation Evaluation"). The p-value applies to these two models, not to other seeds.

    Args:
      first, second: values on the same examples, as in `estimate`. Leading axes broadcast: [M, C] can be compared with
        [L, H, M, C], one metric per head.
      metric, resamples: as in `estimate`.

    Raises:
      ValueError: as in `estimate`.
    """
    axes = max(first.ndim, second.ndim)
    first, second = (side.reshape((1,) * (axes - side.ndim) + side.shape) for side in (first, second))
    larger = max(first, second, key=np.size)
    drawn = np.concatenate(
        [
            _metric_of(second, metric, counts_RM) - _metric_of(first, metric, counts_RM)
            for counts_RM in _draws(larger, resamples)
        ]
    )
    return of_drawn(_measured(second, metric) - _measured(first, metric), drawn, first.shape[-2])


def of_drawn(value: np.ndarray, drawn: np.ndarray, examples: int) -> Difference:
    """Return interval and p-value from resampled differences.

    Args:
      value: the difference on all examples.
      drawn: [resamples, ...], differences.
      examples: number of resampled examples.
    """
    # Ties count on both sides, which keeps p conservative for discrete metrics.
    rarer = np.minimum((drawn <= 0).sum(axis=0), (drawn >= 0).sum(axis=0))
    p = np.minimum(2 * (rarer + 1) / (len(drawn) + 1), 1.0)
    low, high = _bounds(drawn, examples)
    return Difference(value, low, high, _widened(p, examples))


def ratio(sums: np.ndarray) -> np.ndarray:
    """Divide the first sum by the second, e.g. to turn per-example sums into a mean over tokens."""
    return sums[..., 0] / sums[..., 1]


def _draws(values: np.ndarray, resamples: int) -> Iterator[np.ndarray]:
    """Yield draw counts per example, in blocks [R, M]."""
    rng, examples = np.random.default_rng(0), values.shape[-2]
    step = max(_BLOCK // max(examples, values.size // examples), 1)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        # One bincount for all resamples: each has its own range of bins.
        drawn = rng.integers(examples, size=(size, examples)) + examples * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * examples).reshape(size, examples).astype(np.float64)


def _metric_of(sums: np.ndarray, metric: Metric, counts_RM: np.ndarray) -> np.ndarray:
    """Return the metric for each resample, [R, ...]."""
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = np.asarray(metric(np.tensordot(counts_RM, sums, axes=(1, -2))))
    if not np.isfinite(drawn).all():
        raise ValueError("the metric of a resample is not finite; a metric must be defined on every choice of examples")
    return drawn


def _measured(sums: np.ndarray, metric: Metric) -> np.ndarray:
    return np.asarray(metric(sums.sum(axis=-2)))


def _bounds(drawn: np.ndarray, examples: int, share: float = 0.95) -> np.ndarray:
    """Return the quantiles that correspond to a Student's t interval with this confidence level."""
    from scipy import stats

    tail = (1 - share) / 2
    if examples > 1:
        tail = stats.norm.cdf(np.sqrt(examples / (examples - 1)) * stats.t.ppf(tail, examples - 1))
    return np.quantile(drawn, [tail, 1 - tail], axis=0)


def _widened(p: np.ndarray, examples: int) -> np.ndarray:
    """Widen p-values as `_bounds` widens intervals: p < alpha exactly if the 1 - alpha interval excludes zero."""
    from scipy import stats

    if examples < 2:
        return p
    return 2 * stats.t.cdf(stats.norm.ppf(p / 2) * np.sqrt((examples - 1) / examples), examples - 1)
