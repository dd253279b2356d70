"""Descriptions of ONNX files: what is written is read, and what is damaged is refused in one line."""

import json

import pytest

from bertjax.inference import onnx
from bertjax.inference.description import DESCRIPTION, TOKENIZER, Description
from bertjax.runtime.errors import Damaged, UserError

OWN = Description(
    "classification",
    128,
    0,
    labels=("bad", "gut, ü"),
    examples={"kind": "labeled_text", "text": "a", "pair": "b"},
    threshold=0.9,
)


def read(changes=None, text=None):
    text = text if text is not None else json.dumps(json.loads(OWN.to_json()) | (changes or {}))
    return Description.of_metadata({DESCRIPTION: text, TOKENIZER: "{}"}, "a.onnx")


def test_a_description_is_read_as_it_was_written():
    assert read() == OWN and OWN.fields == ("a", "b")
    columns = OWN.with_columns({"text": "c"})
    assert columns.inputs == ("c", "b")


def test_another_label_column_replaces_a_column_for_each_class(tmp_path):
    examples = {"kind": "label_sets", "text": "a", "label_columns": ["bad", "good"]}
    several = Description("multi_label", 8, 0, labels=("bad", "good"), examples=examples)
    (tmp_path / "test.csv").write_text("a,x\nabc,good\n")
    _, labels = onnx.read(several, str(tmp_path / "test.csv"), {"label": "x"})
    assert labels.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"max_tokens": "many"}, "max_tokens='many' is not of type int"),
        ({"max_tokens": True}, "max_tokens=True is not of type int"),
        ({"max_tokens": 0}, "max_tokens=0 must be between 1 and"),
        ({"pad_id": -1}, "pad_id=-1 must be between 0 and"),
        ({"labels": []}, "it has no labels"),
        ({"labels": [1, 2]}, "labels are not different texts"),
        ({"examples": {"text": 3}}, "examples.text=3 is int; it must be text"),
        ({"threshold": 2}, "threshold=2 must be between 0 and 1"),
        ({"pad_id": 10**30}, "pad_id=1000"),
        ({"max_tokens": 10**9}, "max_tokens=1000000000 must"),
        ({"labels": ["a", "a", "b"]}, "labels are not different texts"),
        ({"examples": {"kind": ["x"]}}, "unhashable type"),
        ({"examples": {"kind": "label_sets", "label_columns": [5]}}, "examples.label_columns.0=5 is int"),
        ({"examples": {"kind": "label_sets", "separator": 3}}, "examples.separator=3 is int"),
        ({"unknown": 1}, "unexpected keyword argument 'unknown'"),
        ("", ""),
        ("[]", ""),
        ("[" * 100_000, ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_damaged_description_is_refused(changes, complaint):
    with pytest.raises(Damaged, match=f"the metadata of a.onnx is damaged .*{complaint}.*; convert the model again"):
        read(**{"text" if isinstance(changes, str) else "changes": changes})


def test_other_files_formats_and_columns_are_refused():
    with pytest.raises(UserError, match="--pair=b has no effect on a model of single texts; remove it"):
        Description("embedding", 8, 0).with_columns({"pair": "b"})
    with pytest.raises(UserError, match="a.onnx has no bertjax in its metadata.*; write it with bertjax convert"):
        Description.of_metadata({}, "a.onnx")
    with pytest.raises(UserError, match="a.onnx has format 2, and this bertjax reads format 1; convert"):
        read({"format": 2, "later": 1})
