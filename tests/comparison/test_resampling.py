"""Intervals and p-values by resampling: against loops and enumeration, and by how often intervals hold the truth."""

import itertools

import numpy as np
import pytest
from scipy import stats

from bertjax.comparison import resampling
from bertjax.comparison.resampling import difference, estimate, ratio


def level(tail: float, examples: int) -> float:
    """The level of the expanded percentile interval in place of `tail` (Hesterberg, 2015, section 5.3)."""
    return stats.norm.cdf((examples / (examples - 1)) ** 0.5 * stats.t.ppf(tail, examples - 1))


def test_the_interval_holds_the_truth_as_often_as_it_claims_also_with_few_examples():
    """And p is below 0.05 where the interval does not hold zero, up to the few resamples."""
    rng, trials, held = np.random.default_rng(0), 500, 0
    for _ in range(trials):
        first, second = rng.normal(size=22), rng.normal(3.0, 1.0, size=22)
        _, low, high = estimate(second)
        held += low <= 3.0 <= high
        change = difference(first, second - 2.6, resamples=400)
        assert change.low <= 0.0 <= change.high or change.p < 0.07
        assert not (change.low < 0.0 < change.high and change.p < 0.035)
    assert 0.93 <= held / trials <= 0.97


def test_pairs_are_tested_at_their_level_and_found():
    """Without a difference 5% of the p-values are below 0.05; a difference that pairs reveal is found."""
    rng, below, found, unpaired = np.random.default_rng(1), 0, 0, 0
    for _ in range(250):
        first = 3.0 * rng.normal(size=80)
        equal, better = (first + rng.normal(effect, 1.0, size=80) for effect in (0.0, 0.5))
        below += difference(first, equal, resamples=400).p < 0.05
        found += difference(first, better, resamples=400).p < 0.05
        unpaired += abs(better.mean() - first.mean()) > 1.96 * np.hypot(first.std(), better.std()) / 80**0.5
    assert 0.02 <= below / 250 <= 0.09
    assert found / 250 > 0.95 and unpaired / 250 < 0.3


def test_it_is_what_a_loop_computes():
    """The loop takes the same draws, in the order in which they are made."""
    rng = np.random.default_rng(2)
    first, second = rng.normal(size=7), rng.normal(0.3, size=7)
    examples_RM = np.random.default_rng(9).integers(7, size=(50, 7))
    differences = [np.mean([second[m] - first[m] for m in examples]) for examples in examples_RM]
    actual = difference(first, second, resamples=50, seed=9, share=0.8)
    np.testing.assert_allclose(actual.value, second.mean() - first.mean(), atol=1e-12)
    np.testing.assert_allclose([actual.low, actual.high], np.quantile(differences, [level(0.1, 7), 1 - level(0.1, 7)]))
    rarer = min(np.sum(np.less_equal(differences, 0)), np.sum(np.greater_equal(differences, 0)))
    np.testing.assert_allclose(level(actual.p / 2, 7), (rarer + 1) / 51)


def test_it_draws_what_enumeration_finds():
    """Four examples have 256 equally likely resamples."""
    values = np.array([1.0, 4.0, 10.0, 2.0])
    every = [np.mean([values[m] for m in examples]) for examples in itertools.product(range(4), repeat=4)]
    for share in (0.5, 0.9):
        _, low, high = estimate(values, resamples=40_000, share=share)
        tail = level((1 - share) / 2, 4)
        for share_below, bound in ((tail, low), (1 - tail, high)):
            assert np.mean(np.less(every, bound - 1e-9)) - 0.01 <= share_below
            assert share_below <= np.mean(np.less(every, bound + 1e-9)) + 0.01


def test_a_metric_of_sums_is_computed_on_each_resample():
    """The mean over tokens weighs examples by their length, and F1 is no mean at all."""
    rng = np.random.default_rng(3)
    weights = rng.integers(1, 9, size=40).astype(float)
    losses = rng.normal(size=40)
    weighed = estimate(np.stack([losses * weights, weights], axis=-1), ratio)
    np.testing.assert_allclose(weighed.value, np.average(losses, weights=weights), atol=1e-12)
    repeated = estimate(np.stack([losses * 5, np.full_like(losses, 5)], axis=-1), ratio)
    np.testing.assert_allclose(repeated, estimate(losses), atol=1e-12)

    def f1(sums: np.ndarray) -> np.ndarray:
        true_positives, predicted, actual = np.moveaxis(sums, -1, 0)
        return 2 * true_positives / np.maximum(predicted + actual, 1)

    predicted, actual = rng.integers(2, size=(2, 40))
    columns = np.stack([predicted * actual, predicted, actual], axis=-1)
    expected = 2 * (predicted & actual).sum() / (predicted.sum() + actual.sum())
    result = estimate(columns, f1)
    np.testing.assert_allclose(result.value, expected, atol=1e-12)
    assert result.low < expected < result.high


def test_many_differences_at_once_are_those_one_by_one(monkeypatch):
    rng = np.random.default_rng(4)
    base_M, others_LHM = rng.normal(size=30), rng.normal(size=(2, 3, 30))
    together = difference(base_M, others_LHM, resamples=200)
    assert together.p.shape == (2, 3)
    for layer, head in np.ndindex(2, 3):
        alone = difference(base_M, others_LHM[layer, head], resamples=200)
        np.testing.assert_allclose([part[layer, head] for part in together], alone, atol=1e-12)
    monkeypatch.setattr(resampling, "_BLOCK", 1)
    in_blocks = difference(base_M, others_LHM, resamples=4000)
    np.testing.assert_allclose(in_blocks.low, together.low, atol=0.15)


def test_degenerate_cases():
    assert estimate([2.0]) == (2.0, 2.0, 2.0), "one example"
    same = np.random.default_rng(5).normal(size=9)
    assert difference(same, same) == (0.0, 0.0, 0.0, 1.0)
    certain = difference(same, same + 1.0, resamples=99)
    np.testing.assert_allclose(certain[:3], [1.0, 1.0, 1.0], atol=1e-12)
    np.testing.assert_allclose(level(certain.p / 2, 9), 0.01)
    assert estimate(same, seed=1) == estimate(same, seed=1) and estimate(same, seed=1) != estimate(same, seed=2)


@pytest.mark.parametrize(
    "call, complaint",
    [
        (lambda: estimate(np.zeros((2, 0))), "have no examples"),
        (lambda: estimate(1.0), "have no examples"),
        (lambda: estimate([1.0, np.nan]), "not finite"),
        (lambda: difference(np.zeros(3), np.zeros(4)), "3 and 4 examples"),
        (lambda: estimate([[1.0, 1.0], [1.0, 0.0]], ratio, resamples=200), "metric of a resample is not finite"),
    ],
)
def test_what_cannot_be_resampled_is_an_error(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()
