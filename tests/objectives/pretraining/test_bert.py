"""Masked tokens and the order of sentences: BERT and StructBERT."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.config import Config, Task
from bertjax.data.batch import Draw
from bertjax.data.formats import FORMATS
from bertjax.models.config import EncoderConfig
from bertjax.objectives.base import OBJECTIVES
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.objectives.pretraining.structbert import StructBERT
from bertjax.training.feeds import Feeds
from bertjax.training.loss import normalized, total_loss
from tests import batches, ragged
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


def test_what_has_no_weight_does_not_count():
    batch = batches.make()
    logits = np.random.default_rng(1).normal(size=(*batch["mlm_labels_BK"].shape, 128)).astype(np.float32)
    sums, metrics = MaskedLM().terms_of({"mlm": jnp.array(logits)}, batch)
    real_BK = batch["mlm_weights_BK"] > 0
    other = batch | {"mlm_labels_BK": np.where(real_BK, batch["mlm_labels_BK"], 99)}
    np.testing.assert_array_equal(sums["mlm"], MaskedLM().terms_of({"mlm": jnp.array(logits)}, other)[0]["mlm"])
    assert metrics["mlm_accuracy"][1] == real_BK.sum() == MaskedLM().weights(batch)["mlm"]


def test_baselines_by_hand():
    batch = {"mlm_labels_BK": np.array([[0, 1, 2], [1, 1, 0]]), "mlm_weights_BK": np.array([[1.0, 1, 1], [1, 0, 0]])}
    baselines = MaskedLM().baselines(batch, np.array([1, 5, 0]))
    assert baselines["majority_accuracy"] == (2.0, 4)  # the labels are 0, 1, 2, 1 and the most frequent token is 1
    total, count = baselines["unigram_loss"]
    np.testing.assert_allclose((total, count), (-np.log(2 / 9 * 6 / 9 * 1 / 9 * 6 / 9), 4))


SEQ_LEN, ROWS = 48, 250


@pytest.mark.slow
@pytest.mark.parametrize(
    "objective_kind, format_kind, term, classes",
    [
        ("bert", "segment_pairs", "nsp", 2),
        ("bert", "sentence_pairs", "nsp", 2),
        ("sentence_order", "sentence_order", "sop", 2),
        ("sentence_structure", "sentence_structure", "structure", 3),
        ("sentence_distance", "sentence_distance", "distance", 3),
        ("sentence_reordering", "sentence_reordering", "reordering", 9),
    ],
)
def test_the_label_of_the_examples_is_what_the_head_learns(store, objective_kind, format_kind, term, classes):
    objective, examples = OBJECTIVES.class_of(objective_kind)(), FORMATS.class_of(format_kind)()
    config = Config(tasks={"task": Task(objective, examples, row_examples=1)})
    feed = Feeds(config, store).feed("train", SEQ_LEN)
    (plan,) = feed.plans
    vocabulary = feed.vocabulary
    batch = feed.batch(np.append(np.arange(ROWS), -1))
    (label,) = plan.examples.take(batch["example_ids_BN"][:ROWS, 0]).labels.values()
    assert set(label) == set(range(classes))
    np.testing.assert_array_equal(batch[f"{term}_labels_BN"][:ROWS, 0], label)
    np.testing.assert_array_equal(batch[f"{term}_weights_BN"][:, 0], [1] * ROWS + [0])

    encoder = EncoderConfig(
        vocab_size=vocabulary.size, layers=1, width=16, heads=2, feedforward=16, max_positions=SEQ_LEN
    )
    module = objective.model(encoder)
    params = jax.jit(lambda key: objective.init(module, key, batch))(jax.random.key(0))
    assert set(params["heads"]) == {"mlm", term}

    @jax.jit
    def compute(params, batch):
        sums, metrics = objective.terms(module, params, None, batch, jax.random.key(0), False)
        return objective.apply(module, params, batch)[term], sums, metrics

    logits_BNC, sums, metrics = compute(params, batch)
    logits_BNC = np.asarray(logits_BNC, np.float64)[:ROWS, 0]
    assert logits_BNC.shape == (ROWS, classes)
    log_share = logits_BNC - np.log(np.exp(logits_BNC).sum(-1, keepdims=True))
    np.testing.assert_allclose(sums[term], -log_share[np.arange(ROWS), label].sum(), rtol=1e-5)
    right, weight = metrics[f"{term}_accuracy"]
    assert (right, weight) == (np.sum(logits_BNC.argmax(-1) == label), ROWS)
    assert set(sums) == set(objective.weights(batch)) == {"mlm", term}
    baselines = objective.baselines(batch, np.ones(vocabulary.size))
    right, weight = baselines[f"{term}_majority"]
    assert right.tolist() == [np.sum(label == number) for number in range(classes)] and weight == ROWS
    assert "unigram_loss" in baselines


LENGTHS = np.array([40, 60, 64, 30] * 8)


def features_of(objective: StructBERT, epoch: int = 0) -> dict[str, np.ndarray]:
    examples = ragged.random(LENGTHS, np.arange(len(LENGTHS)))
    examples = dataclasses.replace(examples, labels={"order": np.zeros(len(LENGTHS), np.int32)})
    return objective.features(ragged.one_a_row(examples), Draw(0, np.full(len(LENGTHS), epoch)))


def originals() -> np.ndarray:
    return ragged.one_a_row(ragged.random(LENGTHS, np.arange(len(LENGTHS)))).tokens_to_rows(
        ragged.random(LENGTHS, np.arange(len(LENGTHS))).tokens, 0
    )


def test_shuffled_runs_keep_their_tokens_and_are_all_predicted():
    batch, tokens_BT = features_of(StructBERT(shuffle_rate=0.5)), originals()
    changed = orders = 0
    for row in range(len(LENGTHS)):
        columns = batch["order_positions_BK"][row][batch["order_weights_BK"][row] > 0]
        labels = batch["order_labels_BK"][row][batch["order_weights_BK"][row] > 0]
        np.testing.assert_array_equal(labels, tokens_BT[row, columns])
        for run in columns.reshape(-1, 3):
            assert run.tolist() == [run[0], run[0] + 1, run[0] + 2]
            assert sorted(batch["tokens_BT"][row, run]) == sorted(tokens_BT[row, run])
            changed += (batch["tokens_BT"][row, run] != tokens_BT[row, run]).any()
            orders += 1
    assert orders > 50 and 0.7 < changed / orders < 0.95  # one order of six is the original
