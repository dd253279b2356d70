"""Intervals and tests over the examples of runs, against the multibootstrap called by hand."""

import numpy as np
import pytest
from etils import epath

from bertjax import resampling
from bertjax.comparison.effects import effects_of
from bertjax.comparison.numbers import numbers_of
from bertjax.comparison.runs import open_entries
from bertjax.training.results.scores import scores_of, write_scores
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


def effect_of(first, second):
    entries = open_entries([str(first), str(second)])
    numbers = [numbers_of(entry) for entry in entries]
    return numbers, effects_of(entries, numbers)[0]["mlm_loss"]


def test_seeds_and_examples_are_drawn_together(tmp_path, sums):
    for name, side in zip("ab", sums):
        for seed in range(2):
            finished(tmp_path / name / f"seed={seed}", side[seed], seed=seed)
    (first, _), effect = effect_of(tmp_path / "a", tmp_path / "b")
    expected = resampling.difference(*sums, resampling.ratio)
    assert (effect.covers, effect.paired) == ("seeds and examples", True)
    assert effect[:4] == pytest.approx([float(part) for part in expected])
    interval = resampling.estimate(sums[0], resampling.ratio)
    assert first.heldout["mlm_loss"].interval == pytest.approx((interval.low, interval.high))


def test_single_runs_are_compared_by_example_in_any_order(tmp_path, sums):
    finished(tmp_path / "a", sums[0, 0])
    finished(tmp_path / "b", sums[1, 0][::-1], ids=reversed(IDS))
    _, effect = effect_of(tmp_path / "a", tmp_path / "b")
    expected = resampling.difference(sums[0, :1], sums[1, :1], resampling.ratio)
    assert effect.covers == "examples" and effect.p == pytest.approx(float(expected.p))


def test_other_examples_are_not_paired(tmp_path, sums):
    finished(tmp_path / "a", sums[0, 0])
    finished(tmp_path / "b", sums[1, 0], ids=range(1, 41))
    (first, _), effect = effect_of(tmp_path / "a", tmp_path / "b")
    assert effect.p is None and first.heldout["mlm_loss"].interval is not None


def test_runs_that_lack_a_value_are_not_paired(tmp_path):
    """Each side lacks that of another seed."""
    for name, lacking in (("a", 2), ("b", 0)):
        for seed in range(3):
            loss = None if seed == lacking else 3.0 + seed
            write(tmp_path / name / f"seed={seed}", [record(STEPS, 4.0, loss)], {"seed": seed}, baseline={})
    (first, second), effect = effect_of(tmp_path / "a", tmp_path / "b")
    assert (first.heldout["mlm_loss"].values, second.heldout["mlm_loss"].values) == ((3.0, 4.0), (4.0, 5.0))
    assert not effect.paired and effect.p > 0.0


def test_equal_runs_do_not_differ(tmp_path):
    for name in "ab":
        for seed in range(2):
            write(tmp_path / name / f"seed={seed}", [record(STEPS, 4.0, 3.0 + seed)], {"seed": seed}, baseline={})
    _, effect = effect_of(tmp_path / "a", tmp_path / "b")
    assert effect[:5] == (0.0, 0.0, 0.0, 1.0, "seeds")


def test_few_examples_and_examples_without_a_weight_have_no_interval(tmp_path, sums):
    """The precision of a batch in which nothing was predicted has no value."""
    weightless = sums[0, 0].copy()
    weightless[3] = 0.0
    for name, (ids, chosen) in {"few": (range(19), sums[0, 0][:19]), "none": (IDS, weightless)}.items():
        finished(tmp_path / name, chosen, ids=ids)
        (entry,) = open_entries([str(tmp_path / name)])
        assert numbers_of(entry).heldout["mlm_loss"].interval is None
