"""Heads that a run takes over: their outputs follow the names of the classes."""

import logging

import numpy as np
import pytest

from bertjax.config.config import from_dict
from bertjax.training import class_heads

EXAMPLES = {
    "classification": "labeled_text",
    "multi_label": "label_sets",
    "tagging": "tagged",
    "regression": "labeled_text",
    "embedding_classification": "siamese_pairs",
    "question_answering": "questions",
}


def task(kind: str, classes=()) -> dict:
    objective = {"kind": kind} | ({"classes": list(classes)} if classes else {})
    return {"objective": objective, "examples": {"kind": EXAMPLES[kind]}}


def config_of(tasks: dict):
    return from_dict({"tasks": tasks, "init_from": "models/nli"})


def head(outputs: int) -> dict[str, np.ndarray]:
    return {"kernel": np.arange(3.0 * outputs).reshape(3, outputs), "bias": np.arange(float(outputs))}


def params_with(*path: str, outputs: int) -> dict:
    heads = head(outputs)
    for name in reversed(path):
        heads = {name: heads}
    return {"encoder": {"layers": np.ones(2)}, "heads": heads}


@pytest.mark.parametrize("kind", [kind for kind in EXAMPLES if kind not in ("regression", "question_answering")])
@pytest.mark.parametrize(
    "theirs, ours, order",
    [
        ("entailment neutral contradiction", "contradiction entailment neutral", [2, 0, 1]),
        ("ENTAILMENT Neutral contradiction", "contradiction entailment neutral", [2, 0, 1]),
        (" ".join(f"LABEL_{n}" for n in range(12)), " ".join(map(str, range(12))), list(range(12))),
        ("0 1 10 11 2", "0 1 2 10 11", [0, 1, 4, 2, 3]),
        ("a b", "a b", [0, 1]),
    ],
)
def test_outputs_are_permuted_by_name(kind, theirs, ours, order, caplog):
    theirs, ours = theirs.split(), ours.split()
    config, params = config_of({"toy": task(kind, ours)}), None
    term = config.task.objective.term
    params = params_with(term, outputs=len(theirs))
    with caplog.at_level(logging.INFO):
        found = class_heads.match(params, {"tasks": {"other": task(kind, theirs)}}, config)
    np.testing.assert_array_equal(found["heads"][term]["bias"], order)
    np.testing.assert_array_equal(found["heads"][term]["kernel"], head(len(theirs))["kernel"][:, order])
    assert found["encoder"] is params["encoder"]
    assert params["heads"][term]["bias"].tolist() == list(range(len(theirs))), "the source is not changed"
    assert ("put into the order of the run" in caplog.text) == (theirs != ours)


def test_of_a_head_of_two_layers_only_the_last_has_outputs():
    """`bertjax.models.label_heads.LabelHead`, whose first layer is kept for other classes too."""
    config, first = config_of({"toy": task("classification", "cab")}), {"transform": {"kernel": np.eye(3)}}
    params = params_with("classification", "classifier", outputs=3)
    params["heads"]["classification"] |= first
    found = class_heads.match(params, {"tasks": {"toy": task("classification", "abc")}}, config)
    found = found["heads"]["classification"]
    assert found["classifier"]["bias"].tolist() == [2.0, 0.0, 1.0] and found["transform"] is first["transform"]
    found = class_heads.match(params, {"tasks": {"toy": task("classification", "xyz")}}, config)
    assert found["heads"] == {"classification": first}


@pytest.mark.parametrize("kind", ["classification", "tagging", "multi_label"])
@pytest.mark.parametrize("theirs", ["red green blue", "a b", "a b c d", "A a b"])
def test_a_head_for_other_classes_is_left_out(kind, theirs, caplog):
    config = config_of({"toy": task(kind, "abc")})
    term = config.task.objective.term
    params = params_with(term, outputs=len(theirs.split()))
    found = class_heads.match(params, {"tasks": {"toy": task(kind, theirs.split())}}, config)
    assert found["heads"] == {} and term in params["heads"]
    assert (
        f"init_from=models/nli has the classes {', '.join(theirs.split())} in heads/{term} and the run has a, b, c"
        in (caplog.text)
    )


def test_several_tasks_have_heads_of_their_own():
    theirs = {"one": task("classification", "ab"), "two": task("classification", "cd")}
    ours = {"two": task("classification", "dc"), "three": task("classification", "ab")}
    params = params_with("two", "classification", outputs=2)
    found = class_heads.match(params, {"tasks": theirs}, config_of(ours))
    assert found["heads"]["two"]["classification"]["bias"].tolist() == [1.0, 0.0]
    alone = config_of({"classification": task("classification", "dc")})
    nested = params_with("classification", "classification", outputs=2)
    assert class_heads.match(nested, {"tasks": theirs}, alone) is nested, "its heads are in other places"


def test_numbers_and_spans_have_no_classes(caplog):
    params = params_with("regression", outputs=1)
    with caplog.at_level(logging.INFO):
        found = class_heads.match(params, {"tasks": {"a": task("regression")}}, config_of({"b": task("regression")}))
    assert found is params and "has predicted numbers with heads/regression" in caplog.text
    spans = params_with("span", outputs=2)
    source = {"tasks": {"a": task("question_answering", ["answer"])}}
    ours = config_of({"b": task("question_answering", ["answer", "no_answer"])})
    assert class_heads.match(spans, source, ours) is spans
