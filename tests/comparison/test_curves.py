"""Means and bands over seeds, by hand; what is drawn."""

import numpy as np
import pytest
from matplotlib import image

from bertjax.comparison import curves
from bertjax.comparison.curves import check_axis, choose_metrics, curve_of, smoothed
from bertjax.comparison.runs import open_entries
from bertjax.runtime.errors import UserError
from tests.comparison.workdirs import record, write


def seeds(tmp_path, *of_seeds):
    """An entry with the records of each seed, and one with a single record."""
    for seed, records in enumerate(of_seeds):
        write(tmp_path / f"many/seed={seed}", records)
    alone = write(tmp_path / "alone", [record(1, 1.0)])
    return open_entries([str(tmp_path / "many"), str(alone)])


def as_lists(curve):
    return [values.tolist() for values in curve]


def test_mean_and_band_over_seeds(tmp_path):
    entry, _ = seeds(
        tmp_path,
        [record(10, 9.0, speed=1.0), record(20, 6.0, speed=1.0)],
        [record(10, 6.0, speed=4.0), record(20, 3.0, speed=4.0)],
        [record(10, 3.0, speed=1.0), record(20, 0.0, speed=1.0)],
    )
    band = [[6.0, 3.0], [3.0, 0.0], [9.0, 6.0]]
    assert as_lists(curve_of(entry.runs, "train/mlm_loss", "step")) == [[10.0, 20.0], *band]
    assert as_lists(curve_of(entry.runs, "train/mlm_loss", "seconds")) == [[20.0, 40.0], *band], "mean seconds"
    assert as_lists(curve_of(entry.runs, "train/mlm_loss", "flops")) == [[10000.0, 20000.0], *band]


def test_training_curves_are_interpolated_and_end_with_the_shortest(tmp_path):
    entry, _ = seeds(
        tmp_path,
        [record(10, 8.0), record(20, 4.0), record(30, 2.0)],
        [record(10, 6.0), record(15, 5.0), record(20, None), record(25, 3.0)],
    )
    curve = curve_of(entry.runs, "train/mlm_loss", "step")
    assert curve.x.tolist() == [10.0, 15.0, 20.0, 25.0]
    np.testing.assert_allclose(curve.low, [6.0, 5.0, 4.0, 3.0])
    np.testing.assert_allclose(curve.high, [8.0, 6.0, 4.0, 3.0])
    np.testing.assert_allclose(curve.mean, [7.0, 5.5, 4.0, 3.0])


def test_evaluations_are_averaged_one_by_one(tmp_path):
    """An epoch may have a step more with another seed."""
    entry, _ = seeds(
        tmp_path,
        [record(19, heldout=4.0), record(38, heldout=2.0)],
        [record(20, heldout=6.0), record(39, heldout=3.0), record(59, heldout=1.0)],
    )
    curve = as_lists(curve_of(entry.runs, "eval/heldout/mlm_loss", "step"))
    assert curve == [[19.5, 38.5], [5.0, 2.5], [4.0, 2.0], [6.0, 3.0]]


def test_an_evaluation_that_is_not_finite_is_left_out_and_moves_no_other(tmp_path):
    values = [4.0, 3.0, 2.0, 1.0]
    first, second, third = ([record(10 * (i + 1), heldout=v) for i, v in enumerate(values)] for _ in range(3))
    second[1]["eval/heldout/mlm_loss"] = None
    third[2]["eval/heldout/mlm_loss"] = None
    entry, _ = seeds(tmp_path, second, first, third)
    curve = as_lists(curve_of(entry.runs, "eval/heldout/mlm_loss", "step"))
    assert curve == [[10.0, 40.0], *[[4.0, 1.0]] * 3]


def test_seeds_with_other_evaluations_are_averaged_at_those_in_common(tmp_path):
    """`eval.every` may change when a run is resumed."""
    entry, _ = seeds(
        tmp_path,
        [record(step, heldout=float(step)) for step in (20, 40, 60)],
        [record(step, heldout=float(step)) for step in (10, 20, 30, 40, 50, 61)],
    )
    curve = as_lists(curve_of(entry.runs, "eval/heldout/mlm_loss", "step"))
    assert curve == [[20.0, 40.0, 60.5], [20.0, 40.0, 60.5], [20.0, 40.0, 60.0], [20.0, 40.0, 61.0]]


def test_a_single_run_is_its_points(tmp_path):
    entry, alone = seeds(tmp_path, [record(10, None), record(20, 4.0), record(30, 2.0)])
    assert as_lists(curve_of(entry.runs, "train/mlm_loss", "tokens"))[:2] == [[2000.0, 3000.0], [4.0, 2.0]]
    assert curve_of(alone.runs, "eval/heldout/mlm_loss", "step") is None


def test_shared_losses_are_drawn_by_default(tmp_path):
    mixed = {"train/a/mlm_loss": 1.0, "train/learning_rate": 0.1}
    first, second, third = (
        write(tmp_path / "a", [record(1, 1.0, 1.0) | mixed | {"train/own_loss": 1.0}]),
        write(tmp_path / "b", [record(1) | mixed]),
        write(tmp_path / "c", [record(1, 1.0)]),
    )
    entries = open_entries([str(root) for root in (first, second, third)])
    assert choose_metrics(entries, []) == ["a/mlm_loss", "mlm_loss"]
    assert choose_metrics(entries, ["own_loss", "learning_rate", "own_loss"]) == ["own_loss", "learning_rate"]
    known = "a/mlm_loss, learning_rate, mlm_accuracy, mlm_loss, own_loss"
    with pytest.raises(UserError, match=f"^--metric=none is in no record; choose one of {known}$"):
        choose_metrics(entries, ["mlm_loss", "none"])
    assert choose_metrics(entries[1:], []) == ["a/mlm_loss", "mlm_loss"], "different objectives share no loss"
    only_rates = open_entries([str(write(tmp_path / "d", [{"step": 1, "train/learning_rate": 0.1}]))])
    with pytest.raises(UserError, match="^no run has logged a loss; set --metric to one of learning_rate$"):
        choose_metrics(only_rates, [])


def test_smoothed_values_are_means_of_their_neighbors():
    values = np.array([3.0, 6.0, 0.0, 9.0])
    np.testing.assert_allclose(smoothed(values, 3), [4.5, 3.0, 5.0, 4.5])
    np.testing.assert_array_equal(smoothed(values, 1), values)
    assert len(smoothed(values, 9)) == 4


def test_unknown_axes(tmp_path):
    old = {key: value for key, value in record(1, 1.0).items() if key != "flops"}
    entries = open_entries([str(write(tmp_path / "a", [record(1, 1.0)])), str(write(tmp_path / "b", [old]))])
    assert check_axis(entries, "steps") == "step"
    with pytest.raises(UserError, match="^--x=hours is not an axis; choose one of steps, tokens, seconds$"):
        check_axis(entries, "hours")
    with pytest.raises(UserError, match="^--x=flops is not in the records of all runs; choose one of steps, tokens, "):
        check_axis(entries, "flops")


def test_a_panel_for_each_metric_three_in_a_row(tmp_path):
    entries = seeds(tmp_path, [record(10, 8.0, 8.0)], [record(10, 9.0, 9.0)])
    curves.draw(entries, ["mlm_loss", "mlm_accuracy", "mlm_loss", "mlm_loss"], "seconds", tmp_path / "new" / "four.png")
    assert image.imread(tmp_path / "new" / "four.png").shape[:2] == (1600, 3000)


def test_curves_bands_and_names_are_in_the_figure(tmp_path):
    from matplotlib.figure import Figure

    entries = seeds(
        tmp_path, [record(10, 8.0, 8.0), record(20, 4.0, 4.0)], [record(10, 9.0, 9.0), record(20, 5.0, 5.0)]
    )
    axes = Figure().subplots()
    for index, entry in enumerate(entries):
        curves.draw_entry(axes, entry, "mlm_loss", "step", f"C{index}")
    heldout, train, alone = axes.lines
    assert heldout.get_ydata().tolist() == train.get_ydata().tolist() == [8.5, 4.5]
    assert alone.get_ydata().tolist() == [1.0]
    assert axes.get_legend_handles_labels()[1] == ["many, 2 seeds", "alone"]
    bands = [path.get_paths()[0].vertices[:, 1] for path in axes.collections]
    assert [(band.min(), band.max()) for band in bands] == [(4.0, 9.0), (4.0, 9.0)]
