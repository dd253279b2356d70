"""Names of classes: their spelling, their order, and which names of two files or models mean one class."""

import pytest

from bertjax.data.labeled import labels


def test_names_and_their_order():
    for label, name in (
        (1.0, "1"),
        ("1.00", "1"),
        (2.5, "2.5"),
        ("2.50", "2.50"),
        ("007.0", "007.0"),
        (True, "True"),
        ("\ufeffpos\u200b", "pos"),
        ("cafe\u0301", "caf\u00e9"),
        ("a  b", "a  b"),
    ):
        assert labels.class_of(label) == name
    for names in (("-1", "0", "9", "10"), ("1", "1.5", "10"), ("10", "9", "x"), ("B", "a", "b"), ()):
        assert labels.ordered(reversed(names)) == names


def test_missing_labels_and_counted_names():
    """Beside names that count from 0, -1 is no label."""
    assert all(map(labels.is_missing, ("-", " ", None, float("nan")))) and not labels.is_missing(0)
    assert labels.are_counted(["0", "1", "2"]) and labels.are_counted(["LABEL_1", "LABEL_0"])
    assert not any(map(labels.are_counted, (["0"], ["1", "2"], ["0", "1", "x"])))


@pytest.mark.parametrize(
    "names, classes, expected",
    [
        ("a b", "b a", {"a": "a", "b": "b"}),
        ("a b", "a c", {"a": "a"}),
        ("entailment neutral", "NEUTRAL Entailment", {"entailment": "Entailment", "neutral": "NEUTRAL"}),
        ("0 1 2", "LABEL_2 LABEL_0 LABEL_1", {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}),
        ("LABEL_0 LABEL_1", "1 0", {"LABEL_0": "0", "LABEL_1": "1"}),
        ("XLABEL_2", "X2", {}),
        ("pos Pos", "POS neg", {}),
        ("pos neg", "Pos POS neg", {"neg": "neg"}),
        ("pos Pos", "Pos pos", {"pos": "pos", "Pos": "Pos"}),
    ],
)
def test_names_that_mean_one_class(names, classes, expected):
    assert labels.matched(names.split(), classes.split()) == expected
