"""Multiple choice: a softmax over the choices of a record, on packed rows as on rows of one record."""

import functools

import jax
import numpy as np
import pytest

from bertjax.objectives.finetuning.multiple_choice import MultipleChoice
from tests.objectives.groups import ENCODER, batch_of, examples, module_and_params, outputs_of, terms_of

OBJECTIVE = MultipleChoice(("0", "1", "2"))
RIGHT = np.array([2, 0, 1], np.int32)
SEPARATE_ROWS = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.fixture(scope="module")
def case():
    """(module, params, nine examples of three records)."""
    ragged = examples([4, 5, 3, 6, 4, 7, 3, 5, 4], {"choice": np.repeat(RIGHT, 3)})
    return *module_and_params(OBJECTIVE, batch_of(OBJECTIVE, ragged, SEPARATE_ROWS)), ragged


def scores(params, ragged) -> np.ndarray:
    """Return float64 scores [3, 3], with each example in a row of its own."""
    batch = batch_of(OBJECTIVE, ragged, np.arange(9)[:, None])
    single = MultipleChoice(("0",))
    logits_BG1 = jax.jit(functools.partial(single.apply, single.model(ENCODER)))(params, batch)
    return np.asarray(logits_BG1, np.float64).reshape(3, 3)


def test_terms_are_those_of_the_definition(case):
    module, params, ragged = case
    batch = batch_of(OBJECTIVE, ragged, SEPARATE_ROWS)
    terms, metrics = terms_of(OBJECTIVE, module, params, batch)
    of_each = scores(params, ragged)
    expected = np.sum(np.log(np.exp(of_each).sum(axis=1)) - of_each[np.arange(3), RIGHT])
    np.testing.assert_allclose(terms["multiple_choice"], expected, rtol=1e-5)
    assert tuple(map(float, metrics["accuracy"])) == (np.sum(of_each.argmax(axis=1) == RIGHT), 3.0)
    assert float(OBJECTIVE.weights(batch)["multiple_choice"]) == 3.0, "one for each record, not for each choice"


def test_the_prediction_for_a_record(case):
    module, params, ragged = case
    batch = batch_of(OBJECTIVE, ragged, [[3, 4, 5, 0, 1, 2], [6, 7, 8, -1, -1, -1]])
    chosen = batch["example_ids_BN"] >= 0
    outputs = outputs_of(OBJECTIVE, module, params, batch)
    records = [{"id": int(number) // 3, "_where": "here"} for number in batch["example_ids_BN"][chosen]]
    predicted = OBJECTIVE.predictions(outputs, ragged, records)
    of_each = scores(params, ragged)[[1, 0, 2]]
    expected = np.exp(of_each) / np.exp(of_each).sum(axis=1, keepdims=True)
    assert [record["id"] for record in predicted] == [1, 0, 2] and "_where" not in predicted[0]
    np.testing.assert_allclose([record["probabilities"] for record in predicted], expected, atol=1e-5)
    assert [record["prediction"] for record in predicted] == expected.argmax(axis=1).tolist()


def test_the_most_frequent_number_is_the_baseline(case):
    batch = batch_of(OBJECTIVE, case[-1], [[0, 1, 2, 3, 4, 5], [6, 7, 8, -1, -1, -1]])
    assert OBJECTIVE.baselines(batch, np.array([9, 1, 5])) == {"majority_accuracy": (1.0, 3)}
    assert OBJECTIVE.baselines(batch, np.array([1, 1, 0])) == {"majority_accuracy": (1.0, 3)}
    twelve = MultipleChoice(tuple(sorted(map(str, range(12)))))  # "10" comes before "2"
    ragged = examples([3] * 12, {"choice": np.full(12, 2, np.int32)})
    counts = np.array([5 if name == "2" else 1 for name in twelve.classes])
    baselines = twelve.baselines(batch_of(twelve, ragged, [list(range(12))]), counts)
    assert baselines["majority_accuracy"] == (1.0, 1)
