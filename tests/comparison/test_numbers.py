"""Numbers over seeds, and differences: t tests over seeds, bootstrap over examples, and how often both are right."""

import itertools
import math

import numpy as np
import pytest
from etils import epath
from scipy import stats

from bertjax.comparison import resampling
from bertjax.comparison.numbers import EXAMPLES, Spread, effect_of, effects_of, numbers_of
from bertjax.comparison.resampling import difference, estimate, ratio
from bertjax.comparison.runs import open_entries
from bertjax.training.results.scores import scores_of, scores_of_records, write_scores
from bertjax.training.results.seeds import interval_of_mean
from tests.comparison.workdirs import STEPS, record, write

IDS = range(40)


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


def test_single_runs_are_compared_by_example_in_any_order_and_have_no_p_value(tmp_path, sums):
    finished(tmp_path / "a", sums[0, 0])
    finished(tmp_path / "b", sums[1, 0][::-1], ids=reversed(IDS))
    _, effect = compared(tmp_path / "a", tmp_path / "b")
    expected = resampling.difference(sums[0, 0], sums[1, 0], resampling.ratio)
    assert (effect.covers, effect.p) == (EXAMPLES, None)
    assert effect[1:3] == pytest.approx((float(expected.low), float(expected.high)))


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


def counted(values):
    """Each value with the weight 1."""
    return np.stack([values, np.ones_like(values)], axis=-1)


def level(tail: float, examples: int) -> float:
    """The level of the expanded percentile interval in place of `tail` (Hesterberg, 2015, section 5.3)."""
    return stats.norm.cdf((examples / (examples - 1)) ** 0.5 * stats.t.ppf(tail, examples - 1))


def test_the_interval_holds_the_truth_as_often_as_it_claims_also_with_few_examples():
    """And p is below 0.05 where the interval does not hold zero, up to the few resamples."""
    rng, trials, held = np.random.default_rng(0), 500, 0
    for _ in range(trials):
        first, second = rng.normal(size=22), rng.normal(3.0, 1.0, size=22)
        _, low, high = estimate(counted(second), ratio)
        held += low <= 3.0 <= high
        change = difference(counted(first), counted(second - 2.6), ratio, resamples=400)
        assert change.low <= 0.0 <= change.high or change.p < 0.07
        assert not (change.low < 0.0 < change.high and change.p < 0.035)
    assert 0.93 <= held / trials <= 0.97


def test_it_draws_what_enumeration_finds():
    """Four examples have 256 equally likely resamples."""
    values = np.array([1.0, 4.0, 10.0, 2.0])
    every = [np.mean([values[m] for m in examples]) for examples in itertools.product(range(4), repeat=4)]
    for share in (0.5, 0.9):
        _, low, high = estimate(counted(values), ratio, resamples=40_000, share=share)
        tail = level((1 - share) / 2, 4)
        for share_below, bound in ((tail, low), (1 - tail, high)):
            assert np.mean(np.less(every, bound - 1e-9)) - 0.01 <= share_below
            assert share_below <= np.mean(np.less(every, bound + 1e-9)) + 0.01


def test_a_metric_that_is_not_finite_is_an_error():
    with pytest.raises(ValueError, match="metric of a resample is not finite"):
        estimate(np.array([[1.0, 1.0], [1.0, 0.0]]), ratio, resamples=200)


@pytest.fixture
def entries(tmp_path):
    """Three seeds, the last still running, and a single run that was never evaluated."""
    for seed, loss in enumerate((3.0, 5.0)):
        write(
            tmp_path / f"many/seed={seed}",
            [record(10, 6.0, 5.5), record(STEPS, 4.0, loss)],
            baseline={"unigram_loss": 7.0},
        )
    write(tmp_path / "many/seed=2", [record(10, 6.0, 5.5), record(12, 5.0)])
    alone = write(tmp_path / "alone", [record(4, 6.0)])
    return open_entries([str(tmp_path / "many"), str(alone)])


def test_numbers_over_seeds(entries):
    numbers = numbers_of(entries[0])
    loss = numbers.heldout["mlm_loss"]
    assert loss.values == (3.0, 5.0, 5.5), "of the seed that is under way its last evaluation"
    assert loss.mean == pytest.approx(4.5) and loss.deviation == pytest.approx(1.75**0.5)
    assert loss.interval is None, "they differ by the steps, whatever the seeds do"
    assert numbers.baselines["unigram_loss"].values == (7.0, 7.0)
    assert numbers.baselines["unigram_loss"].interval is None, "it does not vary"
    assert numbers.spent["parameters"].values == (1000, 1000)
    assert numbers.spent["evaluated_at"].values == (20, 20, 10)
    assert numbers.spent["steps"].values == (20, 20, 12)
    assert numbers.spent["tokens"].values == (2000.0, 2000.0, 1200.0)
    assert numbers.spent["flops"].values == (20000.0, 20000.0, 12000.0)
    assert numbers.spent["seconds"].values == (50.0, 50.0, 24.0), "the end of a finished run is after its last line"
    assert numbers.spent["tokens_per_second"].values == (40.0, 40.0, 50.0)
