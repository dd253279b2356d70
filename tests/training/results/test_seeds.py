"""Scores over seeds: mean, deviation, median, best, and how many do not beat the most frequent class."""

import io

import pytest
from rich.console import Console

from bertjax.training.results.seeds import over_seeds, print_seeds


def figures(accuracy: float, majority: float = 0.6) -> dict:
    return {"eval": {"accuracy": accuracy, "f1": accuracy / 2}, "baseline": {"majority_accuracy": majority}}


def test_the_spread():
    spread = over_seeds([figures(accuracy) for accuracy in (0.9, 0.6, 0.7, 0.5)])
    accuracy = spread["metrics"]["accuracy"]
    assert accuracy["values"] == [0.9, 0.6, 0.7, 0.5]
    assert (
        accuracy["mean"] == pytest.approx(0.675)
        and accuracy["median"] == pytest.approx(0.65)
        and accuracy["best"] == 0.9
    )
    assert accuracy["deviation"] == pytest.approx((0.0875 / 3) ** 0.5)
    assert spread["failed"] == 2, "one is as good as the most frequent class, one is worse"


def test_the_table():
    output = io.StringIO()
    print_seeds(over_seeds([figures(0.9), figures(0.5)]), Console(file=output, width=100))
    text = output.getvalue()
    assert "held out, 2 seeds" in text and "1 of 2 did not beat the most frequent class" in text
    assert "0.7000" in text and "0.3500" in text


def test_a_metric_that_some_seeds_lack_is_that_of_the_others():
    """A precision is missing if nothing is predicted, and a value that is not finite is null in `summary.json`."""
    runs = [{"accuracy": None}, {"accuracy": 0.9, "precision": 0.4}, {"accuracy": 0.7, "precision": None}]
    spread = over_seeds([{"eval": values, "baseline": {"majority_accuracy": 0.8}} for values in runs])
    assert spread["metrics"]["accuracy"]["values"] == [None, 0.9, 0.7] and spread["failed"] == 2
    assert spread["metrics"]["accuracy"]["mean"] == pytest.approx(0.8)
    precision = {"values": [None, 0.4, None], "mean": 0.4, "deviation": 0.0, "median": 0.4, "best": 0.4}
    assert spread["metrics"]["precision"] == precision
    nothing = over_seeds([{"eval": {"f1": None}, "baseline": {}}])
    output = io.StringIO()
    for each in (spread, nothing):
        print_seeds(each, Console(file=output, width=100))
    assert "precision (1 of 3)" in output.getvalue() and "0.4000" in output.getvalue()
