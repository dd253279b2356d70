"""Masked scores and importance, against BERT in numpy and float64 (`tests.models.reference`)."""

import copy
import dataclasses

import jax
import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import matthews_corrcoef

from bertjax.analysis import ablation as module
from bertjax.analysis.ablation import Ablation, ablation_of, packed_rows
from bertjax.analysis.material import Labeled
from bertjax.analysis.parts.heads import by_importance
from bertjax.comparison import resampling
from bertjax.objectives.finetuning.labels import Classification
from tests.models import reference

LAYERS, HEADS, FEEDFORWARD = 3, 4, 48
BOTH = ("head_mask", "feedforward_mask")


@pytest.fixture(autouse=True)
def any_number_of_rows(monkeypatch):
    """Let few rows have the intervals and p-values that these tests compute themselves."""
    monkeypatch.setattr(resampling, "LEAST_EXAMPLES", 1)


@pytest.fixture(scope="module")
def few(models) -> Labeled:
    return Labeled("toy", examples=10, path=str(models["labeled"]))


@pytest.fixture(scope="module")
def packed(finetuned, few) -> Ablation:
    return ablation_of(finetuned, few)


def scaled(params: dict, masks: dict) -> dict:
    """Return float64 params in whose output projections the rows of heads and neurons are scaled by masks."""
    params = copy.deepcopy(reference.float64(jax.device_get(params)))
    layers = params["encoder"]["layers"]
    if "head_mask" in masks:
        kernel_LDD = layers["attention"]["output"]["kernel"]
        kernel_LDD *= np.repeat(masks["head_mask"], kernel_LDD.shape[1] // HEADS, axis=1)[..., None]
    if "feedforward_mask" in masks:
        layers["output"]["kernel"] *= masks["feedforward_mask"][..., None]
    return params


def class_losses(subject, encoded, masks):
    """Return the loss of each example, and the log probabilities of its classes."""
    params, losses, answers = scaled(subject.params, masks), [], []
    for tokens_T, label in zip(encoded.ragged.token_lists(), encoded.ragged.labels["label"], strict=True):
        hidden_TD = reference.encode(params["encoder"], subject.encoder, tokens_T, np.zeros_like(tokens_T))
        pooled_D = np.tanh(reference.dense(hidden_TD[0], params["encoder"]["pooler"]))
        probabilities = reference.softmax(reference.dense(pooled_D, params["heads"]["classification"]))
        losses.append(-np.log(probabilities[label]))
        answers.append(probabilities)
    return np.array(losses), np.array(answers)


def without(name, place):
    mask = np.ones((LAYERS, HEADS if name == "head_mask" else FEEDFORWARD))
    mask[place] = 0.0
    return {name: mask}


def slopes(function, name, place, step=1e-4):
    """Return the derivative of what a function of masks returns, by central differences."""
    up, down = (without(name, place) for _ in range(2))
    up[name][place], down[name][place] = 1.0 + step, 1.0 - step
    return (function(up) - function(down)) / (2 * step)


MASKS = ({}, without("head_mask", (1, 2)), without("head_mask", (2, [0, 1, 3])), without("feedforward_mask", (0, 7)))


@pytest.mark.parametrize("masks", MASKS, ids=["on", "one-head", "all-heads-but-one", "one-neuron"])
def test_scores_of_a_classifier_are_those_of_numpy(finetuned, few, packed, masks):
    encoded = few.encoded(finetuned)
    losses, answers = class_losses(finetuned, encoded, masks)
    scores = packed.scores(masks)
    assert scores.loss == pytest.approx(losses.mean(), rel=1e-5)
    assert scores.metric == pytest.approx(np.mean(answers.argmax(axis=1) == encoded.ragged.labels["label"]))
    rows_RN, _ = packed_rows(encoded)
    assert 1 < len(rows_RN) == packed.units < len(encoded)
    sums_U, weights_U = scores.sums["classification_loss"]
    np.testing.assert_allclose(sums_U, [losses[row[row >= 0]].sum() for row in rows_RN], rtol=1e-5)
    np.testing.assert_array_equal(weights_U, (rows_RN >= 0).sum(axis=1))


def test_the_importance_is_the_mean_slope_of_single_examples(finetuned, few, packed):
    encoded, importance = few.encoded(finetuned), packed.importance({})
    for name, places in ((BOTH[0], np.ndindex(LAYERS, HEADS)), (BOTH[1], [(0, 7), (1, 0), (2, 47)])):
        for place in places:
            slopes_M = slopes(lambda masks: class_losses(finetuned, encoded, masks)[0], name, place)
            assert importance[name][place] == pytest.approx(np.abs(slopes_M).mean(), rel=1e-3)
            assert np.abs(slopes_M).mean() > 1.01 * abs(slopes_M.mean())  # absolute values per example


def test_a_metric_of_all_examples(finetuned, labeled, monkeypatch):
    """Matthews' correlation is no sum: it is computed from the outputs, and resampled with them."""
    monkeypatch.setattr(module, "SCORE_RESAMPLES", 40)
    encoded = labeled.encoded(finetuned)
    objective = Classification(("bad", "good"), metric="matthews")
    ablation = Ablation(finetuned, dataclasses.replace(encoded, objective=objective))
    labels = encoded.ragged.labels["label"]
    guesses = [class_losses(finetuned, encoded, masks)[1].argmax(axis=1) for masks in ({}, MASKS[2])]
    expected = [matthews_corrcoef(labels, guess) for guess in guesses]
    masked = ablation.scores(MASKS[2])
    assert ablation.unmasked.metric == pytest.approx(expected[0]) and masked.metric == pytest.approx(expected[1])
    rows, drawn = [row[row >= 0] for row in packed_rows(encoded)[0]], []
    for units in np.random.default_rng(0).integers(0, len(rows), (40, len(rows))):
        members = np.concatenate([rows[unit] for unit in units])
        before, after = (matthews_corrcoef(labels[members], guess[members]) for guess in guesses)
        drawn.append(after - before)
    change = ablation.changes([masked])["matthews"]
    assert change.value.item() == pytest.approx(expected[1] - expected[0])
    rarer = min(np.sum(np.array(drawn) <= 0), np.sum(np.array(drawn) >= 0))
    p, examples = min(1, 2 * (rarer + 1) / 41), len(rows)
    widened = 2 * stats.t.cdf(stats.norm.ppf(p / 2) * (1 - 1 / examples) ** 0.5, examples - 1)
    assert change.p.item() == pytest.approx(widened)


def test_importance_is_computed_again_with_what_is_left():
    """Entry 1 becomes important when entry 0 is off; entries that are off are not pruned twice."""
    asked = []

    def importance_of(mask):
        asked.append(mask.copy())
        importance = np.arange(1.0, 11.0).reshape(1, 10)
        importance[0, 1] = 1.5 if mask[0, 0] else 100.0
        return importance

    masks, order = by_importance((1, 10), importance_of)
    assert order.tolist() == [0, 2, 3, 4, 5, 6, 7, 8, 9, 1]
    assert [int(mask.sum()) for mask in masks] == list(range(10, -1, -1))
    assert [int(mask.sum()) for mask in asked] == list(range(10, 0, -1))
