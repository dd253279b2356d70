"""Intervals and p-values by resampling: against loops and enumeration, and by how often intervals hold the truth."""

import itertools

import numpy as np
import pytest

from bertjax import resampling
from bertjax.resampling import difference, estimate, ratio


def measured(rng, seeds: int, examples: int, mean: float = 3.0) -> np.ndarray:
    """Values [S, M] with an effect of the seed and one of the example, which all seeds share."""
    of_seeds, of_examples = rng.normal(size=(seeds, 1)), rng.normal(size=(1, examples))
    return mean + of_seeds + of_examples + rng.normal(size=(seeds, examples))


def test_the_interval_holds_the_truth_as_often_as_it_claims():
    """And much less often if only one of seeds and examples is resampled."""
    rng, trials = np.random.default_rng(0), 400
    held = {"both": 0, "seeds": 0, "examples": 0}
    for _ in range(trials):
        values_SM = measured(rng, 25, 25)
        by_seed, by_example = values_SM.mean(axis=1, keepdims=True), values_SM.mean(axis=0, keepdims=True)
        for name, values in (("both", values_SM), ("seeds", by_seed), ("examples", by_example)):
            _, low, high = estimate(values, resamples=400)
            held[name] += low <= 3.0 <= high
    assert 0.92 <= held["both"] / trials <= 0.98
    assert held["seeds"] / trials < 0.85 and held["examples"] / trials < 0.85


def test_pairs_are_tested_at_their_level_and_found():
    """Without a difference 5% of the p-values are below 0.05; a difference that pairs reveal is found."""
    rng, below, found, unpaired = np.random.default_rng(1), 0, 0, 0
    for _ in range(250):
        first = 3.0 * rng.normal(size=(1, 80))
        equal, better = (first + rng.normal(effect, 1.0, size=(1, 80)) for effect in (0.0, 0.5))
        below += difference(first, equal, resamples=400).p < 0.05
        found += difference(first, better, resamples=400).p < 0.05
        unpaired += abs(better.mean() - first.mean()) > 1.96 * np.hypot(first.std(), better.std()) / 80**0.5
    assert 0.02 <= below / 250 <= 0.09
    assert found / 250 > 0.95 and unpaired / 250 < 0.3


@pytest.mark.parametrize("paired", [True, False])
def test_it_is_what_a_loop_computes(paired):
    """The loop takes the same draws, in the order in which they are made."""
    rng = np.random.default_rng(2)
    first, second = rng.normal(size=(3, 7)), rng.normal(0.3, size=(3 if paired else 4, 7))
    draws, differences = np.random.default_rng(9), []
    examples_RM = draws.integers(7, size=(50, 7))
    first_RS = draws.integers(3, size=(50, 3))
    second_RS = first_RS if paired else draws.integers(4, size=(50, 4))
    for examples, of_first, of_second in zip(examples_RM, first_RS, second_RS):
        means = [np.mean([[side[s, m] for m in examples] for s in seeds])
                 for side, seeds in ((first, of_first), (second, of_second))]  # fmt: skip
        differences.append(means[1] - means[0])
    actual = difference(first, second, paired_seeds=paired, resamples=50, seed=9, share=0.8)
    np.testing.assert_allclose(actual.value, second.mean() - first.mean(), atol=1e-12)
    np.testing.assert_allclose([actual.low, actual.high], np.quantile(differences, [0.1, 0.9]), atol=1e-12)
    rarer = min(np.sum(np.less_equal(differences, 0)), np.sum(np.greater_equal(differences, 0)))
    assert actual.p == min(1.0, 2 * (rarer + 1) / 51)


def test_it_draws_what_enumeration_finds():
    """Two seeds and three examples have 4 x 27 equally likely resamples."""
    values = np.array([[1.0, 4.0, 10.0], [2.0, 2.0, 5.0]])
    every = [
        np.mean([[values[s, m] for m in examples] for s in seeds])
        for seeds in itertools.product(range(2), repeat=2)
        for examples in itertools.product(range(3), repeat=3)
    ]
    for share in (0.5, 0.9):
        _, low, high = estimate(values, resamples=40_000, share=share)
        for level, bound in (((1 - share) / 2, low), ((1 + share) / 2, high)):
            assert np.mean(np.less(every, bound - 1e-9)) - 0.01 <= level <= np.mean(np.less(every, bound + 1e-9)) + 0.01


def test_a_metric_of_sums_is_computed_on_each_resample():
    """The mean over tokens weighs examples by their length, and F1 is no mean at all."""
    rng = np.random.default_rng(3)
    weights = rng.integers(1, 9, size=(1, 40)).astype(float)
    losses = rng.normal(size=(1, 40))
    weighed = estimate(np.stack([losses * weights, weights], axis=-1), ratio)
    np.testing.assert_allclose(weighed.value, np.average(losses, weights=weights), atol=1e-12)
    repeated = estimate(np.stack([losses * 5, np.full_like(losses, 5)], axis=-1), ratio)
    np.testing.assert_allclose(repeated, estimate(losses), atol=1e-12)

    def f1(sums: np.ndarray) -> np.ndarray:
        true_positives, predicted, actual = np.moveaxis(sums, -1, 0)
        return 2 * true_positives / np.maximum(predicted + actual, 1)

    predicted, actual = rng.integers(2, size=(2, 1, 40))
    columns = np.stack([predicted * actual, predicted, actual], axis=-1)
    expected = 2 * (predicted & actual).sum() / (predicted.sum() + actual.sum())
    result = estimate(columns, f1)
    np.testing.assert_allclose(result.value, expected, atol=1e-12)
    assert result.low < expected < result.high


def test_many_differences_at_once_are_those_one_by_one(monkeypatch):
    rng = np.random.default_rng(4)
    base_1M, others_LH1M = rng.normal(size=(1, 30)), rng.normal(size=(2, 3, 1, 30))
    together = difference(base_1M, others_LH1M, resamples=200)
    assert together.p.shape == (2, 3)
    for layer, head in np.ndindex(2, 3):
        alone = difference(base_1M, others_LH1M[layer, head], resamples=200)
        np.testing.assert_allclose([part[layer, head] for part in together], alone, atol=1e-12)
    monkeypatch.setattr(resampling, "_BLOCK", 1)
    in_blocks = difference(base_1M, others_LH1M, resamples=4000)
    np.testing.assert_allclose(in_blocks.low, together.low, atol=0.15)


def test_degenerate_cases():
    assert estimate([[2.0]]) == (2.0, 2.0, 2.0), "one seed and one example"
    assert estimate([[1.0], [3.0]]).low == 1.0, "seeds alone"
    same = np.random.default_rng(5).normal(size=(2, 9))
    assert difference(same, same) == (0.0, 0.0, 0.0, 1.0)
    certain = difference(same, same + 1.0, resamples=99)
    np.testing.assert_allclose(certain, [1.0, 1.0, 1.0, 0.02], atol=1e-12)
    assert estimate(same, seed=1) == estimate(same, seed=1) and estimate(same, seed=1) != estimate(same, seed=2)


@pytest.mark.parametrize(
    "call, complaint",
    [
        (lambda: estimate(np.zeros((2, 0))), "no seeds or no examples"),
        (lambda: estimate([1.0, 2.0]), "no seeds or no examples"),
        (lambda: estimate([[1.0, np.nan]]), "not finite"),
        (lambda: difference(np.zeros((2, 3)), np.zeros((2, 4))), "3 and 4 examples"),
        (lambda: difference(np.zeros((2, 3)), np.zeros((1, 3))), "set paired_seeds=False"),
        (lambda: estimate([[[1.0, 1.0], [1.0, 0.0]]], ratio, resamples=200), "metric of a resample is not finite"),
    ],
)
def test_what_cannot_be_resampled_is_an_error(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()
