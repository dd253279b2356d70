"""The benchmark of the recipes for labeled files: the page shows the committed lines; seeds draw few examples."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks import classify
from benchmarks.resumable import finished

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["classify", "classify_few"])
def test_the_page_shows_the_committed_lines(name):
    table = classify.markdown(finished(ROOT / "benchmarks" / "results" / f"{name}.jsonl"))
    assert table in (ROOT / "docs" / "results" / "finetuning.md").read_text()


def test_seeds_draw_so_many_examples_of_each_class():
    records = [{"label": "b" if number % 3 else "a", "number": number} for number in range(30)]
    drawn = [classify.drawn(records, "label", 12, seed) for seed in (0, 1, 0)]
    assert Counter(record["label"] for record in drawn[0]) == {"a": 10, "b": 12}, "a class of ten has all of them"
    assert len({record["number"] for record in drawn[0]}) == 22
    assert drawn[0] == drawn[2] != drawn[1]


def test_what_has_a_line_is_not_measured_again():
    lines = [
        {"task": "SST-2", "seed": 0, "arm": "few", "per_class": 8},
        {"task": "SST-2", "seed": 0, "arm": "simple"},
    ]
    few = classify.missing(["SST-2"], ["simple", "few"], 2, [8], lines)
    assert few == [("SST-2", 0, "simple", 8), ("SST-2", 1, "simple", 8), ("SST-2", 1, "few", 8)]
    assert classify.missing(["SST-2"], ["simple"], 2, [0], lines) == [], "without a draw it has no seed"
