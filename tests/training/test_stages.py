import pytest

from bertjax.training.config import Stage
from bertjax.training.stages import Slot, Timetable

# Batch warm-up, then longer rows: shorter than any real run, so that every edge can be seen.
TIMETABLE = Timetable((Stage(3, 8, 4), Stage(2, 8, 16), Stage(4, 32, 2)), "bert")


def test_every_step_has_its_place():
    assert TIMETABLE.steps == 9
    assert [TIMETABLE.at(step) for step in range(9)] == [
        Slot(0, "bert", 8, 4, 0),
        Slot(0, "bert", 8, 4, 4),
        Slot(0, "bert", 8, 4, 8),
        Slot(1, "bert", 8, 16, 12),
        Slot(1, "bert", 8, 16, 28),
        Slot(2, "bert", 32, 2, 44),
        Slot(2, "bert", 32, 2, 46),
        Slot(2, "bert", 32, 2, 48),
        Slot(2, "bert", 32, 2, 50),
    ]


def test_overfitting_draws_the_first_rows_for_ever():
    overfit = Timetable((Stage(1000, 8, 4),), "bert", overfit=True)
    assert overfit.at(999) == overfit.at(0) == Slot(0, "bert", 8, 4, 0)


@pytest.mark.parametrize("step", [9, 10**6])
def test_after_the_end_there_is_nothing(step):
    with pytest.raises(IndexError):
        TIMETABLE.at(step)
    with pytest.raises(IndexError):
        TIMETABLE.edge_after(step, 4)


def test_dispatches_end_at_absolute_multiples_and_with_their_stage():
    assert [TIMETABLE.edge_after(step, 4) for step in range(9)] == [3, 3, 3, 4, 5, 8, 8, 8, 9]
    assert [TIMETABLE.edge_after(step, 1) for step in range(9)] == [*range(1, 10)]
    assert [TIMETABLE.edge_after(step, 100) for step in range(9)] == [3, 3, 3, 5, 5, 9, 9, 9, 9]
