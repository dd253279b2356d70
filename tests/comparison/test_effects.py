"""Differences of runs: t tests over seeds, the bootstrap over examples, and how often both are right."""

import itertools
import math

import numpy as np
import pytest
from etils import epath
from scipy import stats

from bertjax.comparison import resampling
from bertjax.comparison.effects import EXAMPLES, SEEDS, effect_of, effects_of
from bertjax.comparison.numbers import Spread, numbers_of
from bertjax.comparison.resampling import difference, estimate, ratio
from bertjax.comparison.runs import open_entries
from bertjax.training.results.scores import scores_of, scores_of_records, write_scores
from bertjax.training.results.seeds import interval_of_mean, t_test
from tests.comparison.workdirs import STEPS, record, write

IDS = range(40)
# 97.5% quantiles of Student's t distribution by degrees of freedom, from a printed table.
QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


def finished(root, sums, ids=IDS, seed=0):
    """A finished run whose `mlm_loss` is that of the (sum, weight) of examples."""
    write(root, [record(STEPS, 4.0, float(np.divide(*np.sum(sums, axis=0))))], {"seed": seed}, baseline={})
    write_scores(epath.Path(root / "scores.npz"), {"mlm_loss": scores_of(ids, sums)})


@pytest.fixture(scope="module")
def sums():
    random = np.random.default_rng(0)
    weights = random.integers(1, 9, (2, 2, len(IDS)))
    weights[1] = weights[0]
    return np.stack([weights * random.normal(4.0, 1.0, weights.shape), weights], axis=-1)


def compared(first, second):
    entries = open_entries([str(first), str(second)])
    numbers = [numbers_of(entry) for entry in entries]
    return numbers, effects_of(entries, numbers)[0]["mlm_loss"]


def test_several_seeds_are_compared_over_seeds_also_if_their_examples_are_known(tmp_path, sums):
    for name, side in zip("ab", sums):
        for seed in range(2):
            finished(tmp_path / name / f"seed={seed}", side[seed], seed=seed)
    (first, _), effect = compared(tmp_path / "a", tmp_path / "b")
    losses = sums[..., 0].sum(axis=-1) / sums[..., 1].sum(axis=-1)
    differences = losses[1] - losses[0]
    half = QUANTILES[1] * differences.std(ddof=1) / math.sqrt(2)
    assert (effect.covers, effect.paired, effect.seeds) == (SEEDS, True, (2, 2))
    assert effect[:3] == pytest.approx((differences.mean(), differences.mean() - half, differences.mean() + half), 1e-4)
    half = QUANTILES[1] * losses[0].std(ddof=1) / math.sqrt(2)
    assert first.heldout["mlm_loss"].interval == pytest.approx((losses[0].mean() - half, losses[0].mean() + half), 1e-4)


def test_single_runs_are_compared_by_example_in_any_order_and_have_no_p_value(tmp_path, sums):
    finished(tmp_path / "a", sums[0, 0])
    finished(tmp_path / "b", sums[1, 0][::-1], ids=reversed(IDS))
    _, effect = compared(tmp_path / "a", tmp_path / "b")
    expected = resampling.difference(sums[0, 0], sums[1, 0], resampling.ratio)
    assert (effect.covers, effect.p) == (EXAMPLES, None)
    assert effect[1:3] == pytest.approx((float(expected.low), float(expected.high)))


@pytest.mark.parametrize("steps, finished_runs, is_tested", [
    ((STEPS, STEPS), (True, True), True), ((STEPS, 10), (True, False), False), ((10, 10), (False, False), True),
    ((10, 12), (False, False), False),
])  # fmt: skip
def test_runs_that_have_not_finished_are_compared_at_the_same_step_only(tmp_path, steps, finished_runs, is_tested):
    for name, step, is_finished in zip("ab", steps, finished_runs):
        for seed, loss in enumerate((3.0, 3.2)):
            lines, place = [record(step, 4.0, loss + step / 100 + 0.01 * seed)], tmp_path / name / f"seed={seed}"
            write(place, lines, {"seed": seed}, baseline={}, finished=is_finished)
    (first, second), effect = compared(tmp_path / "a", tmp_path / "b")
    assert first.heldout["mlm_loss"].interval and second.heldout["mlm_loss"].interval
    assert effect.at_one_step == is_tested and effect.value is not None and effect.seeds == (2, 2)
    if not is_tested:
        assert (effect.low, effect.high, effect.p) == (None, None, None)


def labeled(root, records, vocab_size, store):
    """A finished fine-tuned run that was scored on records, with a tokenizer and a fingerprint of its own."""
    objective = {"kind": "classification", "classes": ["no", "yes"]}
    examples = {"kind": "labeled_text", "train": "train.tsv", "heldout": "dev.tsv"}
    settings = {"tasks": {"t": {"objective": objective, "examples": examples}}}
    settings["data"] = {"tokenizer": {"vocab_size": vocab_size}}
    line = {"step": STEPS, "eval/heldout/accuracy": 0.5, "eval/heldout/classification_loss": 0.7}
    write(root, [record(STEPS) | line], settings, baseline={}, store=store * 64)
    by_record = scores_of_records(({"sentence": text, "_where": f"{root}:1"}, 1.0, 1.0) for text in records)
    by_batch = scores_of([vocab_size, 2], [(1.0, 1.0)] * 2)
    write_scores(epath.Path(root / "scores.npz"), {"accuracy": by_record, "classification_loss": by_batch})


@pytest.mark.parametrize("other, is_same", [("ab", True), ("ba", True), ("ac", False), ("a", False)])
def test_a_labeled_file_that_was_changed_is_noticed_although_the_tokenizer_differs_too(tmp_path, other, is_same):
    labeled(tmp_path / "a", "ab", 1000, "a")
    labeled(tmp_path / "b", other, 2000, "b")
    entries = open_entries([str(tmp_path / "a"), str(tmp_path / "b")])
    [effects] = effects_of(entries, [numbers_of(entry) for entry in entries])
    for metric in ("accuracy", "classification_loss"):
        assert effects[metric].task_changes == (() if is_same else ("the records of the held-out file",)), metric


def test_other_examples_are_not_paired(tmp_path, sums):
    finished(tmp_path / "a", sums[0, 0])
    finished(tmp_path / "b", sums[1, 0], ids=range(1, 41))
    (first, _), effect = compared(tmp_path / "a", tmp_path / "b")
    assert effect.low is effect.p is None and first.heldout["mlm_loss"].interval is not None


def test_runs_that_lack_a_value_are_not_paired(tmp_path):
    """Each side lacks that of another seed."""
    for name, lacking in (("a", 2), ("b", 0)):
        for seed in range(3):
            loss = None if seed == lacking else 3.0 + seed
            write(tmp_path / name / f"seed={seed}", [record(STEPS, 4.0, loss)], {"seed": seed}, baseline={})
    (first, second), effect = compared(tmp_path / "a", tmp_path / "b")
    assert (first.heldout["mlm_loss"].values, second.heldout["mlm_loss"].values) == ((3.0, 4.0), (4.0, 5.0))
    assert not effect.paired and effect.seeds == (2, 2) and effect.p > 0.0


def test_equal_numbers_of_seeds_have_a_common_variance_and_others_do_not():
    first, second = np.array([3.0, 4.0, 5.0]), np.array([3.5, 5.5, 6.0])
    variance = (first.var(ddof=1) + second.var(ddof=1)) / 2
    half = QUANTILES[4] * math.sqrt(variance * 2 / 3)
    test = t_test(first, second, paired=False)
    assert (test.low, test.high) == pytest.approx((1.0 - half, 1.0 + half), 1e-3)
    fewer = t_test(first, second[:2], paired=False)
    by_side = np.array([first.var(ddof=1) / 3, second[:2].var(ddof=1) / 2])
    degrees = by_side.sum() ** 2 / (by_side**2 / [2, 1]).sum()  # Welch (1947)
    assert 1 < degrees < 2 and (fewer.high - fewer.low) / 2 / math.sqrt(by_side.sum()) == pytest.approx(
        _quantile(degrees), 1e-3
    )


def _quantile(degrees: float) -> float:
    """The 97.5% quantile of the t distribution, by integrating its density."""
    grid = np.linspace(0.0, 60.0, 600_001)
    density = (1 + grid**2 / degrees) ** (-(degrees + 1) / 2)
    density *= math.gamma((degrees + 1) / 2) / (math.sqrt(degrees * math.pi) * math.gamma(degrees / 2))
    return float(grid[np.searchsorted(np.cumsum(density) * grid[1], 0.475)])


def test_few_examples_and_examples_without_a_weight_have_no_interval(tmp_path, sums):
    """The precision of a batch in which nothing was predicted has no value."""
    weightless = sums[0, 0].copy()
    weightless[3] = 0.0
    for name, (ids, chosen) in {"few": (range(19), sums[0, 0][:19]), "none": (IDS, weightless)}.items():
        finished(tmp_path / name, chosen, ids=ids)
        (entry,) = open_entries([str(tmp_path / name)])
        assert numbers_of(entry).heldout["mlm_loss"].interval is None


@pytest.mark.parametrize("shared", [0.0, 0.5])
def test_arms_that_differ_by_seed_noise_alone_are_told_apart_as_rarely_as_claimed(shared):
    """400 trials for each number of seeds; `benchmarks/seed_intervals.py` has 2,000 at the noise of real runs.

    Args:
      shared: part of the variance that two runs of one seed share; 0 for arms of other seeds.
    """
    rng, below, held, held_mean = np.random.default_rng(8), [], [], []
    for seeds, _ in itertools.product((2, 3, 5, 10), range(400)):
        common = math.sqrt(shared) * rng.normal(size=seeds)
        sides = [common + math.sqrt(1 - shared) * rng.normal(size=seeds) for _ in range(2)]
        effect = effect_of(*(Spread(tuple(side)) for side in sides), shared_seeds=seeds if shared else 0)
        below.append(effect.p < 0.05)
        held.append(effect.low < 0.0 < effect.high)
        low, high = interval_of_mean(sides[0])
        held_mean.append(low < 0.0 < high)
    for of_trials, expected in ((below, 0.05), (held, 0.95), (held_mean, 0.95)):
        shares = np.reshape(of_trials, (4, -1)).mean(axis=1)
        deviation = math.sqrt(0.05 * 0.95 / 400)  # of the share of 400 trials
        assert np.abs(shares - expected).max() < 3 * deviation, shares
        assert abs(shares.mean() - expected) < 0.02


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
