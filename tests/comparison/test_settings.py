"""What is compared: settings, numbers and curves."""

import dataclasses

import numpy as np
import pytest
from etils import epath
from matplotlib import image

from bertjax.analysis.run_data import changes_of
from bertjax.comparison import curves
from bertjax.comparison.curves import check_axis, choose_metrics, curve_of
from bertjax.comparison.effects import effects_of
from bertjax.comparison.numbers import numbers_of
from bertjax.comparison.runs import open_entries
from bertjax.comparison.settings import differences_of, shorten
from bertjax.config.config import Config, from_dict
from bertjax.objectives.base import Objective
from bertjax.runtime.errors import UserError
from bertjax.training.results.scores import scores_of, write_probe
from tests.comparison.workdirs import STEPS, record, write


def compared(*roots):
    return differences_of(open_entries([str(root) for root in roots]))


def test_only_differing_settings_are_listed_each_in_its_half(tmp_path):
    changed = {
        "optimizer": {"warmup_steps": 2, "schedule": {"kind": "cosine"}},
        "runtime": {"workers": 2},
        "eval": {"rows": 64},
        "data": {"corpus": "my/texts"},
    }
    first = write(tmp_path / "a", [record(1)])
    second = write(tmp_path / "b", [record(1)], changed, store="b" * 64)
    differences = compared(first, second)
    assert differences.identity["optimizer.schedule.kind"] == [("linear",), ("cosine",)]
    assert all(name.startswith("optimizer.schedule.") for name in differences.identity)
    assert differences.execution == {
        "data.corpus": [("embedded:en",), ("my/texts",)],
        "eval.rows": [(4096,), (64,)],
        "runtime.workers": [(0,), (2,)],
    }
    assert differences.content == {"data.store_fingerprint": [("a" * 64,), ("b" * 64,)]}, "and no plan"


def test_a_setting_that_an_older_run_lacks_has_its_default(tmp_path):
    first, second = write(tmp_path / "a", [record(1)]), write(tmp_path / "b", [record(1)])
    path = second / "config.json"
    path.write_text(path.read_text().replace('"overfit": 0, ', "").replace('"keep_best": 0, ', ""))
    assert path.read_text() != (first / "config.json").read_text()
    assert compared(first, second).identity == {}


def test_seeds_are_one_column(tmp_path):
    for seed in (0, 1):
        write(tmp_path / "many" / f"seed={seed}", [record(1)], {"seed": seed})
        write(tmp_path / "others" / f"seed={seed}", [record(1)], {"seed": seed})
    alone = write(tmp_path / "alone", [record(1)], {"seed": 1})
    assert compared(tmp_path / "many", tmp_path / "others").identity == {}, "they have the same seeds"
    assert compared(tmp_path / "many", alone).identity == {"seed": [(0, 1), (1,)]}


def test_long_values_are_cut_around_the_first_difference():
    texts = ["x" * 30 + "first" + "y" * 30, "x" * 30 + "second" + "y" * 30, "-"]
    assert shorten(texts, width=16) == ["…xxxxxxxxfirstyyy…", "…xxxxxxxxsecondyy…", "-"]
    assert shorten(["a" * 9 + "b" * 40, "-"], width=8) == ["…bbbbbbbb", "-"]
    others = ["p" + "x" * 30 + "1" + "y" * 9, "p" + "x" * 30 + "2" + "y" * 9, "q" * 40]
    assert shorten(others, width=16) == others, "cut where the third differs, the first two would look the same"


def test_settings_that_differ():
    changes = changes_of(
        from_dict(
            {"seed": 3, "model": {"layers": 2}, "optimizer": {"learning_rate": 0.5}, "runtime": {"dtype": "float32"}}
        )
    )
    defaults = Config()
    assert changes == {
        "seed": (3, 0),
        "model.layers": (2, defaults.model.layers),
        "optimizer.learning_rate": (0.5, defaults.optimizer.learning_rate),
        "runtime.dtype": ("float32", "auto"),
    }


def test_a_kind_is_compared_with_the_defaults_of_its_class():
    changes = changes_of(
        from_dict({"tasks": {"mine": {"objective": {"kind": "mlm"}, "examples": {"kind": "full_sentences"}}}})
    )
    assert changes == {
        "tasks.mine.objective.kind": ("mlm", "bert"),
        "tasks.mine.examples.kind": ("full_sentences", "segment_pairs"),
    }


@dataclasses.dataclass(frozen=True)
class Part:
    size: int
    rate: float = 0.5


@dataclasses.dataclass(frozen=True)
class OfParts(Objective):
    """An objective whose setting has no default."""

    parts: tuple[Part, ...] = dataclasses.field(kw_only=True)


def test_a_setting_without_a_default_is_compared_with_the_defaults_of_its_entries():
    task = dataclasses.replace(Config().task, objective=OfParts(parts=(Part(1), Part(2, 0.1))))
    changes = changes_of(dataclasses.replace(Config(), tasks={"mine": task}))
    assert {name: change for name, change in changes.items() if ".parts." in name} == {
        "tasks.mine.objective.parts.0.size": (1, None),
        "tasks.mine.objective.parts.1.size": (2, None),
        "tasks.mine.objective.parts.1.rate": (0.1, 0.5),
    }


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


def test_the_most_frequent_class_of_a_probe_is_a_baseline_and_no_difference_is_tested(tmp_path):
    for name, accuracy in (("a", 0.6), ("b", 0.7)):
        root = write(tmp_path / name, [record(STEPS, 4.0, 3.0)], baseline={})
        found = {"layer_0/accuracy": scores_of([0], [(accuracy, 1.0)]), "majority": scores_of([0], [(0.5, 1.0)])}
        write_probe(epath.Path(root), "tags", found)
    entries = open_entries([str(tmp_path / "a"), str(tmp_path / "b")])
    numbers = [numbers_of(entry) for entry in entries]
    assert numbers[1].baselines["tags/majority"].values == (0.5,)
    assert set(numbers[1].probes) == {"tags/layer_0/accuracy"}
    assert set(effects_of(entries, numbers)[0]) == {"mlm_loss", "mlm_accuracy", "tags/layer_0/accuracy"}


def test_a_summary_of_an_evaluation_does_not_finish_a_run(tmp_path):
    """Even after the last step: the run still has to export."""
    for step, name in ((10, "a"), (STEPS, "b")):
        write(tmp_path / name, [record(step, 4.0, 4.0)], baseline={"unigram_loss": 7.0}, finished=False)
    for entry in open_entries([str(tmp_path / "a"), str(tmp_path / "b")]):
        assert not entry.runs[0].finished
        assert numbers_of(entry).baselines["unigram_loss"].values == (7.0,)


def test_an_unfinished_run_has_the_numbers_of_its_newest_line(tmp_path):
    """`--longer` leaves the old summary until the new end."""
    longer = {"stages": [{"steps": 40, "seq_len": 32, "batch": 8}]}
    root = write(tmp_path / "a", [record(STEPS, 4.0, 4.0)], longer, baseline={"unigram_loss": 7.0})
    with open(root / "metrics.jsonl", "a") as file:
        file.write('{"step": 30, "tokens": 3000.0, "seconds": 60.0, "eval/heldout/mlm_loss": 3.5}\n')
    entry, _ = open_entries([str(root), str(write(tmp_path / "b", [record(1)]))])
    numbers = numbers_of(entry)
    assert not entry.runs[0].finished and numbers.heldout["mlm_loss"].values == (3.5,)
    assert numbers.spent["seconds"].values == (60.0,) and numbers.spent["tokens_per_second"].values == (50.0,)


def test_a_loss_that_is_not_finite_is_left_out(tmp_path):
    broken = write(tmp_path / "a", [record(1) | {"eval/heldout/mlm_loss": None, "eval/heldout/b/mlm_loss": 2.0}])
    entry, _ = open_entries([str(broken), str(write(tmp_path / "b", [record(1)]))])
    assert {name: spread.values for name, spread in numbers_of(entry).heldout.items()} == {"b/mlm_loss": (2.0,)}


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
