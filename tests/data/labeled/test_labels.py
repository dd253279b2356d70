"""Names of classes: their spelling, their order, and which names of two files or models mean one class."""

import pytest

from bertjax.data.labeled import labels


@pytest.mark.parametrize(
    "label, name",
    [
        (1.0, "1"),
        ("1.00", "1"),
        (2.5, "2.5"),
        ("2.50", "2.50"),
        ("007.0", "007.0"),
        (True, "True"),
        (" pos\t", "pos"),
        ("\ufeffpos\u200b", "pos"),
        ("cafe\u0301", "caf\u00e9"),
        ("a  b", "a  b"),
    ],
)
def test_names(label, name):
    assert labels.class_of(label) == name


@pytest.mark.parametrize(
    "names, expected",
    [
        ({"10", "9", "-1", "0"}, ("-1", "0", "9", "10")),
        ({"1.5", "1", "10"}, ("1", "1.5", "10")),
        ({"10", "9", "x"}, ("10", "9", "x")),
        ({"b", "B", "a"}, ("B", "a", "b")),
        (set(), ()),
    ],
)
def test_order(names, expected):
    assert labels.ordered(names) == expected


@pytest.mark.parametrize("label, expected", [("-", True), (" ", True), (None, True), (float("nan"), True), (0, False)])
def test_missing(label, expected):
    assert labels.is_missing(label) == expected


@pytest.mark.parametrize(
    "names, expected", [("0 1 2", True), ("LABEL_1 LABEL_0", True), ("0", False), ("1 2", False), ("0 1 x", False)]
)
def test_counted_names(names, expected):
    """Beside these, -1 is no label."""
    assert labels.are_counted(names.split()) == expected


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
