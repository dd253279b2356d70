"""Texts with any number of labels: how tables write them, what becomes of them, and what is refused."""

import dataclasses
import json

import numpy as np
import pytest

from bertjax.config.config import Task
from bertjax.data.labeled.base import WHERE
from bertjax.data.labeled.label_sets import LabelSets
from bertjax.data.labeled.source import LabeledSource
from bertjax.objectives.finetuning.classification import Classification
from bertjax.objectives.finetuning.multi_label import MultiLabel
from bertjax.runtime.errors import UserError

ROWS = [("abc", ["b", "a"]), ("bcd", []), ("cde", ["c"]), ("def", ["a", "c"])]
CLASSES = ("a", "b", "c")


def csv(folder, rows=ROWS, separator=","):
    lines = [f'{text},"{separator.join(names)}"' for text, names in rows]
    (folder / "rows.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    return str(folder / "rows.csv")


def jsonl(folder, labels):
    lines = [json.dumps({"text": f"text {number}", "label": value}) for number, value in enumerate(labels)]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder / "rows.jsonl")


def test_one_number_for_each_class(tmp_path, spelling):
    path = csv(tmp_path)
    source = LabeledSource(LabelSets(train=path, heldout=path, text="text"), spelling)
    assert source.classes == CLASSES and source.unigram_counts("train").tolist() == [2, 1, 2]
    labels_MC = source.examples("train", 16, source.classes).ragged.labels["label_set"]
    np.testing.assert_array_equal(labels_MC, [[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 1]])


def test_all_ways_of_writing_are_the_same(tmp_path):
    names = [names for _, names in ROWS]
    spaced = csv(tmp_path, [(text, [f" {name} " for name in names]) for text, names in ROWS], separator="|")
    assert [record["label"] for record in LabelSets(text="text", separator="|").read(spaced)] == names
    assert [record["label"] for record in LabelSets(text="text").read(jsonl(tmp_path, names))] == names
    texts = jsonl(tmp_path, [",".join(of_row) for of_row in names])
    assert [record["label"] for record in LabelSets(text="text").read(texts)] == names
    numbers = jsonl(tmp_path, [[2, 10], [2, 2]])
    assert [record["label"] for record in LabelSets(text="text").read(numbers)] == [["2", "10"], ["2"]]


@pytest.mark.parametrize(
    "values, expected",
    [
        ([[1, 0, 0, 1], [0, 1, 0, 0]], [["0", "3"], ["1"]]),
        ([[1.0, 0.0], [0.0, 0.0]], [["0"], []]),
        ([[0, 1], [1, 0]], [["1"], ["0"]]),
        ([[True, False], [True, True]], [["0"], ["0", "1"]]),
        (["0,1,0", "1,1,0"], [["1"], ["0", "1"]]),
        (["0 1 0", "[1, 1, 0]"], [["1"], ["0", "1"]]),
        ([[0], [1], [0, 1]], [["0"], ["1"], ["0", "1"]]),
        ([[0, 1], [0, 1]], [["0", "1"], ["0", "1"]]),
        ([[1, 2], [2, 1]], [["1", "2"], ["2", "1"]]),
    ],
)
def test_vectors_of_ones_and_zeros_are_read_as_their_places_and_lists_of_numbers_as_names(tmp_path, values, expected):
    assert [record["label"] for record in LabelSets(text="text").read(jsonl(tmp_path, values))] == expected


@pytest.mark.parametrize("odd", [[1, 0], [1, 0, -100], None, [], "1 0 0 1"])
def test_one_odd_label_does_not_make_names_of_vectors(tmp_path, odd):
    values = [[1, 0, 0], odd, [0, 1, 1]]
    with pytest.raises(UserError, match="rows.jsonl:2 has .* in 'label', where others have 3 numbers 0 or 1"):
        LabelSets(text="text").read(jsonl(tmp_path, values))


def test_a_column_of_ones_and_zeros_for_each_class(tmp_path):
    names = [of_row for _, of_row in ROWS]
    table = "text,a,b,c\n" + "\n".join(f"{text},{','.join(str(int(c in has)) for c in CLASSES)}" for text, has in ROWS)
    (tmp_path / "rows.csv").write_text(table + "\n")
    columns = LabelSets(text="text", label_columns=CLASSES)
    assert [sorted(of_row) for of_row in names] == [
        record["label"] for record in columns.read(str(tmp_path / "rows.csv"))
    ]
    lines = [json.dumps({"text": text, "a": "a" in has, "b": 1.0 * ("b" in has)}) for text, has in ROWS]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    two = LabelSets(text="text", label_columns=("a", "b")).read(str(tmp_path / "rows.jsonl"))
    assert [record["label"] for record in two] == [["a", "b"], [], [], ["a"]]
    without = dataclasses.replace(columns, label="").read(csv(tmp_path))
    assert len(without) == len(ROWS), "a file to predict has no labels"


def test_the_objective_fits_the_labels(spelling):
    with pytest.raises(UserError, match=r"h.csv:2 has the label 'x', which the training file lacks \(a, b, c\)"):
        LabelSets(text="text").encode([{"text": "abc", "label": ["x"], WHERE: "h.csv:2"}], spelling, 16, CLASSES)
    with pytest.raises(UserError, match="learns the label label_set, .* use examples.kind=label_sets"):
        Task(MultiLabel())
    with pytest.raises(UserError, match="learns the label label, which examples.kind=label_sets does not have"):
        Task(Classification(), LabelSets(train="a", heldout="b"))
