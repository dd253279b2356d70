"""SQuAD's scores: values worked out by hand from the definitions of the official script."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.objectives.finetuning import squad_metrics


@pytest.mark.parametrize(
    "answer, gold, exact, f1",
    [
        ("The Denver Broncos!", ["Denver Broncos"], 1.0, 1.0),
        ("a  the an", [""], 1.0, 1.0),
        ("Broncos", ["Denver Broncos"], 0.0, 2 / 3),
        ("Denver Broncos of Denver", ["Denver Broncos"], 0.0, 2 * 2 / (4 + 2)),
        ("Denver Denver", ["Denver"], 0.0, 2 / 3),  # a word counts as often as both have it
        ("theory", ["ory"], 0.0, 0.0),  # articles are words, not letters
        ("U.S.", ["us"], 1.0, 1.0),
        ("twenty-one", ["twenty one"], 0.0, 0.0),
        ("in 1990", ["1989", "1990", "in the year 1990"], 0.0, 4 / 5),
        ("nothing", [], 0.0, 0.0),
        ("", [], 1.0, 1.0),
        ("", ["something"], 0.0, 0.0),
        ("the", ["something"], 0.0, 0.0),
        ("\uc11c\uc6b8.", ["\uc11c\uc6b8"], 1.0, 1.0),
    ],
)
def test_scores_as_literals(answer, gold, exact, f1):
    assert squad_metrics.exact_match(answer, gold) == exact
    assert squad_metrics.f1(answer, gold) == pytest.approx(f1)


@settings(deadline=None)
@given(st.text(), st.lists(st.text(), max_size=3))
def test_scores_are_between_0_and_1_and_a_gold_answer_has_1(answer, gold):
    assert 0.0 <= squad_metrics.exact_match(answer, gold) <= squad_metrics.f1(answer, gold) <= 1.0
    assert squad_metrics.exact_match(answer, [*gold, answer]) == squad_metrics.f1(answer, [*gold, answer]) == 1.0


scores = st.floats(0, 1, allow_subnormal=False)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), scores, scores), min_size=1, max_size=12))
def test_no_threshold_is_better(questions):
    margins, answered, refused = np.array(questions, float).T

    def total(threshold):
        return np.where(margins > threshold, refused, answered).sum()

    best = squad_metrics.best_threshold(margins, answered, refused)
    assert total(best) >= max(total(threshold) for threshold in np.arange(-4.5, 4.5)) - 1e-9


def test_thresholds_as_literals():
    margins, answered, refused = np.array([-2.0, 1.0, 3.0]), np.array([1.0, 0.5, 0.0]), np.array([0.0, 0.0, 1.0])
    assert squad_metrics.best_threshold(margins, answered, refused) == 2.0
    assert squad_metrics.best_threshold(margins, np.zeros(3), np.ones(3)) == -3.0
    assert squad_metrics.best_threshold(margins, np.ones(3), np.zeros(3)) == 4.0
