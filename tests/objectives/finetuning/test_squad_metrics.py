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


@pytest.mark.parametrize(
    "answer, gold, exact, f1",
    [
        ("이순신은", ["이순신"], 0.0, 6 / 7),  # KorQuAD: characters, whatever the particle is
        ("거북선을 만든", ["거북선"], 0.0, 2 * 3 / (6 + 3)),
        ("《홍길동》", ["홍길동"], 1.0, 1.0),  # its script turns brackets into spaces
        ("(노량)에서", ["노량 에서"], 1.0, 1.0),
        ("서울 시", ["서울시"], 0.0, 1.0),  # an exact match compares words
        ("《紅樓夢》", ["紅樓夢"], 1.0, 1.0),  # MLQA: punctuation of any script is left out
        ("曹雪芹", ["曹雪芹的"], 0.0, 6 / 7),
        ("1598年", ["1598 年"], 1.0, 1.0),
        ("東京と", ["東京"], 0.0, 4 / 5),
        ("กรุงเทพ", ["กรุงเทพฯ"], 0.0, 2 * 7 / (7 + 8)),
    ],
)
def test_scores_in_korean_and_without_spaces(answer, gold, exact, f1):
    assert squad_metrics.exact_match(answer, gold) == exact
    assert squad_metrics.f1(answer, gold) == pytest.approx(f1)


@pytest.mark.parametrize(
    "text, unit",
    [
        ("The tower of Seoul (\uc11c\uc6b8) is high.", "words"),
        ("\uc774\uc21c\uc2e0\uc740 BTS\ub97c 1545\ub144\uc5d0", "korean"),
        ("\u7d05\u6a13\u5922 is a book", "words"),
        ("\u66f9\u96ea\u82b9\u5beb\u4e86 IBM", "characters"),
        ("\u043c\u043e\u0441\u043a\u0432\u0430", "words"),
        ("1598", "words"),
        ("", "words"),
    ],
)
def test_the_script_of_most_letters_decides(text, unit):
    assert squad_metrics.unit_of(text) == unit


def test_the_unit_of_a_context_is_that_of_its_answers():
    """A year in a Korean context is compared by characters, too."""
    assert squad_metrics.f1("1598\ub144", ["1598"], squad_metrics.KOREAN) == pytest.approx(8 / 9)
    assert squad_metrics.f1("1598", ["15"], squad_metrics.KOREAN) == pytest.approx(4 / 6)
    assert squad_metrics.f1("1598", ["15"]) == 0.0
    for unit, exact in ((squad_metrics.CHARACTERS, 1.0), (squad_metrics.WORDS, 0.0)):  # words are whole in the first
        assert squad_metrics.exact_match("Apple\u516c\u53f8", ["apple \u516c\u53f8"], unit) == exact


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
