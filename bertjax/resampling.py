"""Confidence intervals and p-values by resampling: the multibootstrap, and the paired bootstrap, its case of one seed.

The multibootstrap (Sellam et al., 2022, MultiBERTs, arXiv 2106.16163, section 3) draws seeds and examples together,
each with replacement. Its interval covers other seeds and other examples of the same kind, not only those that were
measured. Each seed has the same weight, and all of them are measured on the same examples.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# Numbers of one block of resamples: 32 MB.
_BLOCK = 1 << 22

Metric = Callable[[np.ndarray], np.ndarray]


class Estimate(NamedTuple):
    """A metric with its interval; arrays of the leading axes of the values.

    Attributes:
      value: the metric on all examples, averaged over the seeds.
      low, high: bounds of the percentile interval.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


# Fewer examples, or batches of a pretraining, give an interval that is too narrow.
LEAST_EXAMPLES = 20


class Difference(NamedTuple):
    """A difference of two metrics, the second minus the first, with its interval; arrays of the leading axes.

    Attributes:
      value: the difference on all examples, averaged over the seeds.
      low, high: bounds of the percentile interval.
      p: two-sided p-value of no difference: twice the share of resamples on the rarer side of zero, at most 1. It is at
        least 2 / (resamples + 1), since the measured sample counts as one more.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray


def estimate(
    values: np.ndarray, metric: Metric | None = None, *, resamples: int = 1000, seed: int = 0, share: float = 0.95
) -> Estimate:
    """Return a metric of several seeds on the same examples, with its interval.

    Args:
      values: [..., S, M], the value of each of S seeds on each of M examples. One example gives an interval over seeds
        alone, one seed an interval over examples alone.
      metric: None for the mean over examples; otherwise `values` are [..., S, M, C], and `metric` returns [...] from
        the sums [..., C] over examples, such as `ratio`.
      resamples: number of resamples.
      seed: seed of the draws.
      share: confidence level.

    Raises:
      ValueError: there are no values, or values or metric are not finite.
    """
    values, metric = _as_sums(values, metric)
    drawn = np.concatenate([_metric_of(values, metric, *draw) for draw in _draws(values, values, resamples, seed)])
    return Estimate(_measured(values, metric), *_bounds(drawn, share))


def difference(
    first: np.ndarray,
    second: np.ndarray,
    metric: Metric | None = None,
    *,
    paired_seeds: bool = True,
    resamples: int = 1000,
    seed: int = 0,
    share: float = 0.95,
) -> Difference:
    """Return how much the second of two metrics exceeds the first, with interval and p-value.

    With one seed on either side it is the paired bootstrap over examples (Koehn, 2004, "Statistical Significance Tests
    for Machine Translation Evaluation").

    Args:
      first, second: values on the same examples, as in `estimate`. Leading axes are broadcast: [1, M] may be compared
        with the [L, H, 1, M] of all heads.
      metric, resamples, seed, share: as in `estimate`.
      paired_seeds: whether seed s of the first and seed s of the second belong together, so that both are drawn;
        otherwise the seeds of either side are drawn on their own.

    Raises:
      ValueError: the sides have different examples, or paired seeds of different numbers; or as in `estimate`.
    """
    (first, to_metric), (second, _) = _as_sums(first, metric), _as_sums(second, metric)
    if first.shape[-2] != second.shape[-2]:
        raise ValueError(f"{first.shape[-2]} and {second.shape[-2]} examples; both sides need the same ones")
    if paired_seeds and first.shape[-3] != second.shape[-3]:
        raise ValueError(f"{first.shape[-3]} and {second.shape[-3]} seeds cannot be paired; set paired_seeds=False")
    axes = max(first.ndim, second.ndim)
    first, second = (side.reshape((1,) * (axes - side.ndim) + side.shape) for side in (first, second))
    drawn = []
    for examples_RM, first_RS, second_RS in _draws(first, second, resamples, seed, paired_seeds):
        before = _metric_of(first, to_metric, examples_RM, first_RS)
        drawn.append(_metric_of(second, to_metric, examples_RM, second_RS) - before)
    drawn = np.concatenate(drawn)
    return of_drawn(_measured(second, to_metric) - _measured(first, to_metric), drawn, share)


def of_drawn(value: np.ndarray, drawn: np.ndarray, share: float = 0.95) -> Difference:
    """Return a difference from that of each resample.

    Args:
      value: the difference on all examples.
      drawn: [resamples, ...], the difference of each resample.
      share: confidence level.
    """
    rarer = np.minimum((drawn <= 0).sum(axis=0), (drawn >= 0).sum(axis=0))
    return Difference(value, *_bounds(drawn, share), np.minimum(2 * (rarer + 1) / (len(drawn) + 1), 1.0))


def ratio(sums: np.ndarray) -> np.ndarray:
    """Return the first of two sums over the second: the mean over tokens of values that are summed by example."""
    return sums[..., 0] / sums[..., 1]


def _as_sums(values: np.ndarray, metric: Metric | None) -> tuple[np.ndarray, Metric]:
    values = np.asarray(values, np.float64)
    if metric is None:
        values, metric = np.stack([values, np.ones_like(values)], axis=-1), ratio
    if values.ndim < 3 or 0 in values.shape:
        raise ValueError(
            f"values of shape {values.shape[:-1]} have no seeds or no examples; pass [..., seeds, examples]"
        )
    if not np.isfinite(values).all():
        raise ValueError("values are not finite; leave such examples out on both sides")
    return values, metric


def _draws(first: np.ndarray, second: np.ndarray, resamples: int, seed: int, paired: bool = True):
    """Yield blocks of (how often each example is drawn [R, M], and each seed of the first and the second [R, S])."""
    rng, examples = np.random.default_rng(seed), first.shape[-2]
    first_seeds, second_seeds = first.shape[-3], second.shape[-3]
    widest = max(examples, first.size // examples, second.size // examples)
    step = max(_BLOCK // widest, 1)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        counts_RM, first_RS = _counts(rng, size, examples), _counts(rng, size, first_seeds)
        yield counts_RM, first_RS, first_RS if paired else _counts(rng, size, second_seeds)


def _counts(rng: np.random.Generator, size: int, items: int) -> np.ndarray:
    """Return [R, items]: how often each item is drawn, in as many draws as there are items."""
    drawn = rng.integers(items, size=(size, items)) + items * np.arange(size)[:, None]
    return np.bincount(drawn.ravel(), minlength=size * items).reshape(size, items).astype(np.float64)


def _metric_of(sums: np.ndarray, metric: Metric, examples_RM: np.ndarray, seeds_RS: np.ndarray, *_) -> np.ndarray:
    """Return [R, ...], the metric of each resample: of its examples, averaged over its seeds."""
    drawn = np.tensordot(examples_RM, sums, axes=(1, -2))
    with np.errstate(invalid="ignore", divide="ignore"):
        by_seed = np.asarray(metric(drawn))
    if not np.isfinite(by_seed).all():
        raise ValueError("the metric of a resample is not finite; a metric must be defined on every choice of examples")
    shape = (len(seeds_RS), *[1] * (by_seed.ndim - 2), seeds_RS.shape[1])
    return (by_seed * seeds_RS.reshape(shape)).sum(axis=-1) / seeds_RS.shape[1]


def _measured(sums: np.ndarray, metric: Metric) -> np.ndarray:
    return np.asarray(metric(sums.sum(axis=-2))).mean(axis=-1)


def _bounds(drawn: np.ndarray, share: float) -> np.ndarray:
    return np.quantile(drawn, [(1 - share) / 2, (1 + share) / 2], axis=0)
