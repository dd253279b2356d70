"""SetFit: pairs of the batch are those of numpy, packed or not; pairs train the encoder, labels the head."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from bertjax.config.config import from_dict
from bertjax.models.pooling import mean_of_examples
from bertjax.objectives.finetuning.classification import Classification
from bertjax.objectives.finetuning.regression import Regression
from bertjax.objectives.finetuning.setfit import APART, TOGETHER, SetFit
from bertjax.runtime.errors import UserError
from tests.objectives.groups import batch_of, examples, module_and_params, terms_of

OBJECTIVE = SetFit(Classification(("a", "b", "c"), pooling="mean"))
LABELS = np.array([0, 1, 0, 2, 0, 1], np.int32)
SEPARATE = [[0], [1], [2], [3], [4], [5]]
PACKED = [[4, 1, -1], [-1, -1, -1], [0, 5, 2], [3, -1, -1]]


@pytest.fixture(scope="module")
def case():
    """(module, params, batch of single rows, packed batch)."""
    ragged = examples([5, 9, 4, 7, 8, 3], {"label": LABELS})
    alone, packed = (batch_of(OBJECTIVE, ragged, rows) for rows in (SEPARATE, PACKED))
    return *module_and_params(OBJECTIVE, alone), alone, packed


@pytest.mark.slow
def test_pairs_of_the_batch_are_those_of_the_definition(case):
    module, params, alone, packed = case
    hidden_BTD = module.apply({"params": params}, alone, method="encode").hidden
    vectors = np.asarray(mean_of_examples(hidden_BTD, alone["examples_BT"], 1)[:, 0], np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    first, second = np.nonzero(~np.eye(6, dtype=bool))
    cosines, is_same = np.sum(vectors[first] * vectors[second], axis=1), LABELS[first] == LABELS[second]
    for batch in (alone, packed):
        weights, (terms, metrics) = OBJECTIVE.weights(batch), terms_of(OBJECTIVE, module, params, batch)
        assert (weights[TOGETHER], weights[APART], weights["classification"]) == (8, 22, 6)
        np.testing.assert_allclose(terms[TOGETHER], np.sum((1 - cosines[is_same]) ** 2), rtol=1e-4)
        np.testing.assert_allclose(terms[APART], np.sum(cosines[~is_same] ** 2), rtol=1e-4)
        labels_alone = terms_of(OBJECTIVE.objective, module, params, alone)
        np.testing.assert_allclose(terms["classification"], labels_alone[0]["classification"], rtol=1e-4)
        assert metrics == labels_alone[1]


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_labels_train_the_head_alone_and_pairs_the_encoder_alone(case, pooling):
    _, _, _, batch = case
    objective = dataclasses.replace(OBJECTIVE, objective=dataclasses.replace(OBJECTIVE.objective, pooling=pooling))
    module, params = module_and_params(objective, batch)

    @jax.jit
    def gradients(params, batch):
        return jax.jacrev(lambda params: terms_of(objective, module, params, batch)[0])(params)

    moved = {
        term: {part for part in ("encoder", "heads") if any(np.any(leaf) for leaf in jax.tree.leaves(gradient[part]))}
        for term, gradient in gradients(params, batch).items()
    }
    assert moved == {"classification": {"heads"}, TOGETHER: {"encoder"}, APART: {"encoder"}}


@pytest.mark.parametrize("objective", [Regression(pooling="mean"), Classification(pooling="late")])
def test_objectives_without_a_class_and_a_vector_are_refused(objective):
    with pytest.raises(UserError, match="objective.kind=setfit compares examples by their class and one vector each"):
        SetFit(objective)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"objective": {"precision": 0.9}}, "did you mean 'tasks.a.objective.objective.precision'"),
        ({"runtime": {"micro_tokens": 64}}, "would split the batch, and objective.kind=setfit compares all"),
        ({"examples": {"heldout": 0.0}}, "name the training file itself to hold out nothing"),
    ],
)
def test_what_a_user_of_classify_py_would_try_names_the_way(settings, message):
    objective = {"kind": "setfit", "objective": {"kind": "classification", "pooling": "mean"}}
    task = {
        "objective": objective | settings.pop("objective", {}),
        "examples": {"kind": "labeled_text", "train": "a.csv"} | settings.pop("examples", {}),
    }
    with pytest.raises(UserError, match=re.escape(message)):
        from_dict({"tasks": {"a": task}, **settings})
