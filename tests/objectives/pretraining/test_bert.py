"""BERT's losses: golden values, definitions, padding, dropout."""

import jax
import numpy as np
import pytest

from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.training.loss import normalized, total_loss
from tests import batches
from tests.models import reference

OBJECTIVE = BERT()
GOLDEN_MLM, GOLDEN_NSP = 6.152914, 0.6951759


@pytest.fixture(scope="module")
def fixed():
    """(module, params, batch), with weights that follow from a formula."""
    module, batch = OBJECTIVE.model(batches.ENCODER), batches.make()
    return module, batches.filled(batches.param_shapes(OBJECTIVE, module.config, batch)), batch


def losses(module, params, batch, train=False):
    def compute(params, batch):
        sums, metrics = OBJECTIVE.terms(module, params, None, batch, jax.random.key(0), train)
        return normalized(sums, OBJECTIVE.weights(batch)), metrics

    return jax.jit(compute)(params, batch)


def test_golden_losses(fixed):
    actual, metrics = losses(*fixed)
    np.testing.assert_allclose(actual["mlm"], GOLDEN_MLM, rtol=1e-5)
    np.testing.assert_allclose(actual["nsp"], GOLDEN_NSP, rtol=1e-5)
    np.testing.assert_allclose(total_loss(OBJECTIVE, actual, step=0), GOLDEN_MLM + GOLDEN_NSP, rtol=1e-5)
    assert metrics["nsp_accuracy"][1] == 8


def test_losses_are_means_of_the_log_probabilities(fixed):
    module, params, batch = fixed
    mlm_BKV, nsp_B2 = reference.bert(params, batches.ENCODER, batch)
    actual, metrics = losses(*fixed)

    def mean(logits, labels, weights):
        true = np.take_along_axis(np.log(reference.softmax(logits)), labels[..., None], axis=-1)[..., 0]
        return -(true * weights).sum() / weights.sum(), ((logits.argmax(-1) == labels) * weights).sum()

    loss, right = mean(mlm_BKV, batch["mlm_labels_BK"], batch["mlm_weights_BK"])
    np.testing.assert_allclose(actual["mlm"], loss, rtol=1e-5)
    assert metrics["mlm_accuracy"][0] == right
    loss, right = mean(nsp_B2[:, None], batch["nsp_labels_BN"], batch["nsp_weights_BN"])
    np.testing.assert_allclose(actual["nsp"], loss, rtol=1e-5)
    assert metrics["nsp_accuracy"][0] == right


def test_an_empty_row_changes_nothing(fixed):
    module, params, batch = fixed
    empty = jax.tree.map(np.zeros_like, batches.make(1)) | {"example_ids_BN": np.array([[-1]], np.int32)}
    longer = {name: np.concatenate([batch[name], empty[name]]) for name in batch}
    expected, actual = losses(*fixed), losses(module, params, longer)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), actual, expected)


def test_the_labels_of_pairs_change_the_pair_loss_only(fixed):
    module, params, batch = fixed
    flipped = batch | {"nsp_labels_BN": 1 - batch["nsp_labels_BN"]}
    (plain, metrics), (other, changed) = losses(*fixed), losses(module, params, flipped)
    assert plain["mlm"] == other["mlm"] and plain["nsp"] != other["nsp"]
    assert metrics["nsp_accuracy"][0] + changed["nsp_accuracy"][0] == 8


def test_outputs_are_the_best_tokens_in_order(fixed):
    module, params, batch = fixed
    guesses_BK5 = jax.jit(OBJECTIVE.outputs, static_argnums=0)(module, params, batch)["mlm_guesses"].array
    mlm_BKV, _ = reference.bert(params, batches.ENCODER, batch)
    np.testing.assert_array_equal(guesses_BK5, np.argsort(-mlm_BKV, axis=-1)[..., :5])
