"""Losses on pairs of embeddings: equal to numpy, and equal on packed rows and rows of one pair."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy import stats

from bertjax.config.config import from_dict
from bertjax.models.encoder import Encoder
from bertjax.models.pooling import mean_of_examples
from bertjax.objectives.finetuning.embeddings import (
    EmbeddingClassification,
    EmbeddingContrastive,
    EmbeddingRegression,
    EmbeddingSimCSE,
)
from bertjax.objectives.finetuning.labels import Classification
from bertjax.objectives.finetuning.setfit import APART, TOGETHER, SetFit
from bertjax.objectives.losses import cosine
from bertjax.runtime.errors import UserError
from tests.objectives.groups import ENCODER, batch_of, examples, module_and_params, outputs_of, terms_of

CLASSES = ("contradiction", "entailment", "neutral")
SCORES, NUMBERS = np.array([5.0, 0.5, 2.5], np.float32), np.array([1, 0, 2], np.int32)
SEPARATE_ROWS = [[0, 1], [2, 3], [4, 5]]
OBJECTIVES = [EmbeddingRegression(full_score=5.0), EmbeddingClassification(CLASSES), EmbeddingContrastive()]


def pairs(objective):
    labels = {"side": np.array([0, 1] * 3, np.int32)}
    if not isinstance(objective, EmbeddingContrastive):
        labels["pair_label"] = np.repeat(NUMBERS if objective.classes else SCORES, 2)
    return examples([5, 9, 4, 7, 8, 3], labels)


@pytest.fixture(scope="module", params=OBJECTIVES, ids=lambda objective: type(objective).__name__)
def case(request):
    """(objective, module, params, examples)."""
    objective, ragged = request.param, pairs(request.param)
    module, params = module_and_params(objective, batch_of(objective, ragged, SEPARATE_ROWS))
    return objective, module, params, ragged


def embeddings(params, ragged) -> np.ndarray:
    """Return float64 means of the last hidden states, from the encoder on one example per row."""
    tokens_BT = np.zeros((len(ragged.ids), max(ragged.lengths)), np.int32)
    is_token_BT = np.arange(max(ragged.lengths)) < ragged.lengths[:, None]
    tokens_BT[is_token_BT] = ragged.tokens
    encode = jax.jit(
        lambda params, *inputs: Encoder(ENCODER).apply({"params": params}, inputs[0], examples_BT=inputs[1])
    )
    hidden_BTD = np.asarray(encode(params["encoder"], tokens_BT, is_token_BT).hidden, np.float64)
    return np.stack([hidden_TD[:length].mean(axis=0) for hidden_TD, length in zip(hidden_BTD, ragged.lengths)])


def cross_entropy(logits, labels) -> float:
    return float(-np.log(np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True))[np.arange(3), labels].sum())


def test_terms_are_those_of_the_definition(case):
    objective, module, params, ragged = case
    terms, metrics = terms_of(objective, module, params, batch_of(objective, ragged, SEPARATE_ROWS))
    u, v = embeddings(params, ragged)[::2], embeddings(params, ragged)[1::2]
    cosines = u @ v.T / np.linalg.norm(u, axis=1)[:, None] / np.linalg.norm(v, axis=1)
    if isinstance(objective, EmbeddingRegression):
        logits, expected = None, np.sum((np.diag(cosines) - SCORES / 5.0) ** 2)
    elif objective.classes:
        head = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["heads"]["embedding"])
        logits, labels = np.concatenate([u, v, np.abs(u - v)], axis=1) @ head["kernel"] + head["bias"], NUMBERS
        expected = cross_entropy(logits, labels)
    else:
        logits, labels = cosines / 0.05, np.arange(3)
        expected = cross_entropy(logits, labels)
    np.testing.assert_allclose(terms["embedding"], expected, rtol=1e-4)
    if logits is not None:
        assert tuple(map(float, metrics["accuracy"])) == (np.sum(logits.argmax(axis=1) == labels), 3.0)


@pytest.mark.parametrize("rows_BN", [[[2, 3, 0, 1], [-1] * 4, [4, 5, -1, -1]], [[4, 5, 0, 1, 2, 3]]])
def test_packed_rows_give_the_terms_of_single_pairs(case, rows_BN):
    objective, module, params, ragged = case
    results = []
    for rows in (SEPARATE_ROWS, rows_BN):
        batch = batch_of(objective, ragged, rows)
        assert float(objective.weights(batch)["embedding"]) == 3.0
        results.append(terms_of(objective, module, params, batch))
    np.testing.assert_allclose(results[1][0]["embedding"], results[0][0]["embedding"], rtol=1e-4)
    assert results[1][1] == results[0][1]


def test_gradients_pass_empty_slots(case):
    objective, module, params, ragged = case

    @jax.jit
    @jax.grad
    def gradient(params, batch):
        return terms_of(objective, module, params, batch)[0]["embedding"]

    layouts = [[0, 1, -1, -1], [2, 3, -1, -1], [4, 5, -1, -1]], [[2, 3, 0, 1], [-1] * 4, [4, 5, -1, -1]]
    alone, packed = (gradient(params, batch_of(objective, ragged, rows)) for rows in layouts)
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(packed), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-4)


def test_predictions_and_scores_of_pairs(case):
    objective, module, params, ragged = case
    batch = batch_of(objective, ragged, [[2, 3, 0, 1], [4, 5, -1, -1]])
    chosen = batch["example_ids_BN"] >= 0
    outputs = outputs_of(objective, module, params, batch)
    order = batch["example_ids_BN"][chosen]
    ragged, whole = ragged.take(order), embeddings(params, ragged)[order]
    u, v = whole[::2], whole[1::2]
    cosines = np.sum(u * v, axis=1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    records = [{"id": int(number) // 2, "_where": "here"} for number in order]
    predicted = objective.predictions(outputs, ragged, records)
    assert [record["id"] for record in predicted] == [1, 0, 2] and "_where" not in predicted[0]
    np.testing.assert_allclose([record["cosine"] for record in predicted], cosines, atol=2e-6)
    scores = objective.score(outputs, ragged, records)
    if isinstance(objective, EmbeddingRegression):
        expected = SCORES[[1, 0, 2]]
        assert scores["spearman"] == pytest.approx(stats.spearmanr(cosines, expected).statistic)
        assert scores["pearson"] == pytest.approx(stats.pearsonr(cosines, expected).statistic, rel=1e-4)
    else:
        assert scores == {}
    if objective.classes:
        assert sum(predicted[0]["probabilities"].values()) == pytest.approx(1.0, abs=1e-5)
        assert predicted[0]["prediction"] == max(predicted[0]["probabilities"], key=predicted[0]["probabilities"].get)
        assert objective.baselines(batch, np.array([1, 5, 3])) == {"majority_accuracy": (1.0, 3)}


def test_two_views_of_a_text_differ_only_by_dropout():
    """Both embeddings are equal without dropout, and differ with it."""
    objective = EmbeddingSimCSE()
    single = examples([6, 9, 4], {"side": np.zeros(3, np.int32)})
    twice = single.take(np.repeat(np.arange(3), 2))
    twice = dataclasses.replace(twice, ids=np.arange(6), labels={"side": np.array([0, 1] * 3, np.int32)})
    batch = batch_of(objective, twice, [[0, 1, 2, 3], [4, 5, -1, -1]])
    module, params = module_and_params(objective, batch)
    views = jax.jit(lambda params, key: objective.apply(module, params, batch, key))
    first, second = views(params, None)
    np.testing.assert_allclose(first, second, atol=1e-6)

    dropping = objective.model(dataclasses.replace(ENCODER, dropout=0.1))
    views = jax.jit(lambda params, key: objective.apply(dropping, params, batch, key))
    first, second = views(params, jax.random.key(0))
    cosines = np.asarray(cosine(first, second))[batch["weights_BP"] > 0]
    assert len(cosines) == 3 and cosines.max() < 0.9999 and cosines.min() > 0.3


def test_a_metric_of_scores_needs_held_out_scores():
    examples = {"kind": "repeated_text", "label": ""}
    task = {"objective": {"kind": "embedding_simcse"}, "examples": examples}
    with pytest.raises(UserError, match="learns the label pair_label, which examples.kind=repeated_text does not have"):
        from_dict({"tasks": {"texts": task}, "optimizer": {"warmup_steps": 0}})


OBJECTIVE = SetFit(Classification(("a", "b", "c"), pooling="mean"))
LABELS = np.array([0, 1, 0, 2, 0, 1], np.int32)
SEPARATE = [[0], [1], [2], [3], [4], [5]]
PACKED = [[4, 1, -1], [-1, -1, -1], [0, 5, 2], [3, -1, -1]]


@pytest.fixture(scope="module")
def case_of_setfit():
    """(module, params, batch of single rows, packed batch)."""
    ragged = examples([5, 9, 4, 7, 8, 3], {"label": LABELS})
    alone, packed = (batch_of(OBJECTIVE, ragged, rows) for rows in (SEPARATE, PACKED))
    return *module_and_params(OBJECTIVE, alone), alone, packed


@pytest.mark.slow
def test_pairs_of_the_batch_are_those_of_the_definition(case_of_setfit):
    module, params, alone, packed = case_of_setfit
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
def test_labels_train_the_head_alone_and_pairs_the_encoder_alone(case_of_setfit, pooling):
    _, _, _, batch = case_of_setfit
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
