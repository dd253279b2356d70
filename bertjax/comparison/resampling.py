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


class Estimate(NamedTuple):
    """A metric with its interval; array shapes are the leading axes of the values.

    Attributes:
      value: the metric on all examples.
      low, high: bounds of the percentile interval.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


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
    values: np.ndarray, metric: Metric | None = None, *, resamples: int = 1000, seed: int = 0, share: float = 0.95
) -> Estimate:
    """Return a metric with its interval.

    Args:
      values: [..., M], one value per example.
      metric: None for the mean over examples; otherwise `values` are [..., M, C], and `metric`, such as `ratio`, maps
        sums over examples [..., C] to [...].
      resamples: number of resamples.
      seed: random seed.
      share: confidence level.

    Raises:
      ValueError: there are no values, or values or metric are not finite.
    """
    values, metric = _as_sums(values, metric)
    drawn = np.concatenate([_metric_of(values, metric, counts_RM) for counts_RM in _draws(values, resamples, seed)])
    return Estimate(_measured(values, metric), *_bounds(drawn, values.shape[-2], share))


def difference(
    first: np.ndarray,
    second: np.ndarray,
    metric: Metric | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
    share: float = 0.95,
) -> Difference:
    """Compare two metrics, second minus first, with interval and p-value, by the paired bootstrap.

    Both sides use the same examples in each resample (Koehn, 2004, "Statistical Significance Tests for Machine
    Translation Evaluation"). The p-value applies to these two models, not to other seeds.

    Args:
      first, second: values on the same examples, as in `estimate`. Leading axes broadcast: [M] can be compared with
        [L, H, M], one value per head.
      metric, resamples, seed, share: as in `estimate`.

    Raises:
      ValueError: the sides have different examples; or as in `estimate`.
    """
    (first, to_metric), (second, _) = _as_sums(first, metric), _as_sums(second, metric)
    if first.shape[-2] != second.shape[-2]:
        raise ValueError(f"{first.shape[-2]} and {second.shape[-2]} examples; both sides need the same ones")
    axes = max(first.ndim, second.ndim)
    first, second = (side.reshape((1,) * (axes - side.ndim) + side.shape) for side in (first, second))
    larger = max(first, second, key=np.size)
    drawn = np.concatenate(
        [
            _metric_of(second, to_metric, counts_RM) - _metric_of(first, to_metric, counts_RM)
            for counts_RM in _draws(larger, resamples, seed)
        ]
    )
    return of_drawn(_measured(second, to_metric) - _measured(first, to_metric), drawn, first.shape[-2], share)


def of_drawn(value: np.ndarray, drawn: np.ndarray, examples: int, share: float = 0.95) -> Difference:
    """Return interval and p-value from resampled differences.

    Args:
      value: the difference on all examples.
      drawn: [resamples, ...], differences.
      examples: number of resampled examples.
      share: confidence level.
    """
    # Ties count on both sides, which keeps p conservative for discrete metrics.
    rarer = np.minimum((drawn <= 0).sum(axis=0), (drawn >= 0).sum(axis=0))
    p = np.minimum(2 * (rarer + 1) / (len(drawn) + 1), 1.0)
    low, high = _bounds(drawn, examples, share)
    return Difference(value, low, high, _widened(p, examples))


def ratio(sums: np.ndarray) -> np.ndarray:
    """Divide the first sum by the second, e.g. to turn per-example sums into a mean over tokens."""
    return sums[..., 0] / sums[..., 1]


def _as_sums(values: np.ndarray, metric: Metric | None) -> tuple[np.ndarray, Metric]:
    values = np.asarray(values, np.float64)
    if metric is None:
        values, metric = np.stack([values, np.ones_like(values)], axis=-1), ratio
    if values.ndim < 2 or 0 in values.shape:
        raise ValueError(f"values of shape {values.shape[:-1]} have no examples; pass [..., examples]")
    if not np.isfinite(values).all():
        raise ValueError("values are not finite; leave such examples out on both sides")
    return values, metric


def _draws(values: np.ndarray, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Yield draw counts per example, in blocks [R, M]."""
    rng, examples = np.random.default_rng(seed), values.shape[-2]
    step = max(_BLOCK // max(examples, values.size // examples), 1)
    for start in range(0, resamples, step):
        yield _counts(rng, min(step, resamples - start), examples)


def _counts(rng: np.random.Generator, size: int, items: int) -> np.ndarray:
    """Return draw counts [R, items] for as many draws as there are items."""
    # One bincount for all resamples: each has its own range of bins.
    drawn = rng.integers(items, size=(size, items)) + items * np.arange(size)[:, None]
    return np.bincount(drawn.ravel(), minlength=size * items).reshape(size, items).astype(np.float64)


def _metric_of(sums: np.ndarray, metric: Metric, counts_RM: np.ndarray) -> np.ndarray:
    """Return the metric for each resample, [R, ...]."""
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = np.asarray(metric(np.tensordot(counts_RM, sums, axes=(1, -2))))
    if not np.isfinite(drawn).all():
        raise ValueError("the metric of a resample is not finite; a metric must be defined on every choice of examples")
    return drawn


def _measured(sums: np.ndarray, metric: Metric) -> np.ndarray:
    return np.asarray(metric(sums.sum(axis=-2)))


def _bounds(drawn: np.ndarray, examples: int, share: float) -> np.ndarray:
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
