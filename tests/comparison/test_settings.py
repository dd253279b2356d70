"""What is compared: settings, numbers and curves."""

import pytest

from bertjax.comparison.numbers import numbers_of
from bertjax.comparison.runs import open_entries
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
