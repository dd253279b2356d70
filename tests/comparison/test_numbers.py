"""Final numbers of runs and of seeds, against sums done by hand."""

import pytest
from etils import epath

from bertjax.comparison.effects import effects_of
from bertjax.comparison.numbers import Spread, numbers_of
from bertjax.comparison.runs import open_entries
from bertjax.training.results.scores import scores_of, write_probe
from tests.comparison.workdirs import STEPS, record, write


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


def test_a_moving_average_has_numbers_of_its_own(tmp_path):
    line = record(STEPS, 4.0, 3.0) | {"eval_ema/heldout/mlm_loss": 2.5}
    entries = open_entries([str(write(tmp_path / name, [line], baseline={})) for name in ("a", "b")])
    heldout = numbers_of(entries[0]).heldout
    assert (heldout["mlm_loss"].values, heldout["ema/mlm_loss"].values) == ((3.0,), (2.5,))


def test_a_run_that_was_never_evaluated(entries):
    numbers = numbers_of(entries[1])
    assert (numbers.heldout, numbers.baselines) == ({}, {})
    assert {name: spread.values for name, spread in numbers.spent.items()} == {
        "steps": (4,),
        "tokens": (400.0,),
        "flops": (4000.0,),
        "seconds": (8.0,),
        "tokens_per_second": (50.0,),
    }
    assert numbers.spent["steps"].deviation == 0.0 and numbers.spent["steps"].interval is None


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


def test_values_that_differ_by_rounding_have_no_interval():
    assert Spread((0.1 + 0.2, 0.3, 0.3)).interval is None and Spread((0.0, 0.0)).interval is None
    low, high = Spread((0.3, 0.301)).interval
    assert low < 0.3 < 0.301 < high


def test_finished_runs(entries):
    assert [[run.finished for run in entry.runs] for entry in entries] == [[True, True, False], [False]]


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


def test_a_seed_that_has_just_started_has_spent_nothing(tmp_path):
    write(tmp_path / "many/seed=0", [record(STEPS, 4.0, 3.0)], baseline={})
    write(tmp_path / "many/seed=1", [])
    [entry] = open_entries([str(tmp_path / "many")])
    assert numbers_of(entry).spent["seconds"].values == (50.0,)
