"""Masked language modeling: the term, its metrics and its baselines."""

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.objectives.losses import classification_term
from bertjax.objectives.pretraining.mlm import MaskedLM
from tests import batches
from tests.models import reference


def test_classification_is_cross_entropy_and_the_first_of_the_largest():
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(4, 50, 9)).astype(np.float32)
    labels, weights = draw.integers(0, 9, (4, 50)), draw.random((4, 50)).astype(np.float32)
    loss, right = classification_term(jnp.array(logits), labels, weights)
    true = np.take_along_axis(np.log(reference.softmax(np.float64(logits))), labels[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(loss, -(true * weights).sum(), rtol=1e-5)
    np.testing.assert_allclose(right, ((logits.argmax(-1) == labels) * weights).sum(), rtol=1e-5)


@pytest.mark.parametrize("label, right", [(0, 0), (1, 1), (2, 0), (3, 0)])
def test_of_equal_logits_the_first_is_the_answer(label, right):
    """Like argmax, so a tie never counts as correct for two labels."""
    logits = jnp.array([[0.0, 5.0, 5.0, 5.0]])
    assert classification_term(logits, jnp.array([label]), jnp.ones(1))[1] == right


def test_the_lowest_float_as_a_logit_gives_a_finite_loss():
    logits = jnp.array([[1.0, 2.0, np.finfo(np.float32).min]])
    loss, _ = classification_term(logits, jnp.array([0]), jnp.ones(1))
    np.testing.assert_allclose(loss, np.log(1 + np.e), rtol=1e-6)


def test_what_has_no_weight_does_not_count():
    batch = batches.make()
    logits = np.random.default_rng(1).normal(size=(*batch["mlm_labels_BK"].shape, 128)).astype(np.float32)
    sums, metrics = MaskedLM().terms_of({"mlm": jnp.array(logits)}, batch)
    real_BK = batch["mlm_weights_BK"] > 0
    other = batch | {"mlm_labels_BK": np.where(real_BK, batch["mlm_labels_BK"], 99)}
    np.testing.assert_array_equal(sums["mlm"], MaskedLM().terms_of({"mlm": jnp.array(logits)}, other)[0]["mlm"])
    assert metrics["mlm_accuracy"][1] == real_BK.sum() == MaskedLM().weights(batch)["mlm"]


def test_the_share_of_dropped_predictions():
    batch = batches.make() | {"mlm_dropped_B": np.array([0, 3, 0, 0, 2, 0, 0, 0])}
    logits = {"mlm": jnp.zeros((*batch["mlm_labels_BK"].shape, 128))}
    dropped, chosen = MaskedLM().terms_of(logits, batch)[1]["mlm_dropped"]
    assert dropped == 5 and chosen == 5 + batch["mlm_weights_BK"].sum()


def test_baselines_by_hand():
    batch = {"mlm_labels_BK": np.array([[0, 1, 2], [1, 1, 0]]), "mlm_weights_BK": np.array([[1.0, 1, 1], [1, 0, 0]])}
    baselines = MaskedLM().baselines(batch, np.array([1, 5, 0]))
    assert baselines["majority_accuracy"] == (2.0, 4)  # the labels are 0, 1, 2, 1 and the most frequent token is 1
    total, count = baselines["unigram_loss"]
    np.testing.assert_allclose((total, count), (-np.log(2 / 9 * 6 / 9 * 1 / 9 * 6 / 9), 4))
