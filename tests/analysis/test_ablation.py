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
from bertjax.analysis.material import Labeled, texts_material
from bertjax.analysis.pruning import by_importance, kept_up_to
from bertjax.comparison import resampling
from bertjax.objectives.finetuning.classification import Classification
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


def word_losses(subject, encoded, masks):
    """Return the summed loss of the masked tokens of each example, and their number."""
    params, sums, counts = scaled(subject.params, masks), [], []
    for index, length in enumerate(encoded.ragged.lengths):
        batch = {k: v[0] for k, v in encoded.batch(np.array([[index]]), int(length), with_objective=True).items()}
        hidden_TD = reference.encode(
            params["encoder"], subject.encoder, batch["tokens_BT"], np.zeros(length, np.int32)
        )[batch["mlm_positions_BK"]]
        head = params["heads"]["mlm"]
        hidden_KD = reference.norm(
            reference.gelu(reference.dense(hidden_TD, head["transform"])), head["norm"], subject.encoder.norm_epsilon
        )
        logits_KV = hidden_KD @ params["encoder"]["embeddings"]["word"].T + head["word_bias"]
        probabilities_KV = reference.softmax(logits_KV[:, : subject.encoder.vocab_size])
        losses_K = -np.log(np.take_along_axis(probabilities_KV, batch["mlm_labels_BK"][:, None], axis=1)[:, 0])
        sums.append((losses_K * batch["mlm_weights_BK"]).sum())
        counts.append(batch["mlm_weights_BK"].sum())
    return np.array(sums), np.array(counts)


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


def test_rows_of_one_example_have_the_same_scores_and_importance(finetuned, few, packed, monkeypatch):
    monkeypatch.setattr(module, "SLOTS", 1)
    single = Ablation(finetuned, few.encoded(finetuned))
    assert single.units == 10 > packed.units
    masks = without("head_mask", (0, 1))
    for one, other in zip(single.importance(masks).values(), packed.importance(masks).values()):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-8)
    assert single.scores(masks).loss == pytest.approx(packed.scores(masks).loss, rel=1e-6)
    assert single.scores(masks).metric == packed.scores(masks).metric


def test_changes_are_those_of_rows(finetuned, few, packed):
    """The mean over examples is that over rows, which hold different numbers of them."""
    encoded = few.encoded(finetuned)
    before, after, other = (class_losses(finetuned, encoded, masks)[0] for masks in ({}, MASKS[2], MASKS[3]))
    rows = [row[row >= 0] for row in packed_rows(encoded)[0]]
    assert len({len(row) for row in rows}) > 1

    def sums(losses):
        return np.array([[losses[row].sum(), len(row)] for row in rows])

    expected = resampling.difference(sums(before), np.stack([sums(after), sums(other)]), resampling.ratio)
    changes = packed.changes([packed.scores(MASKS[2]), packed.scores(MASKS[3])])
    for values, expected_values in zip(changes["loss"], expected, strict=True):
        np.testing.assert_allclose(values, expected_values, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(
        changes["loss"].value, [after.mean() - before.mean(), other.mean() - before.mean()], rtol=1e-3, atol=1e-6
    )


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


@dataclasses.dataclass(frozen=True)
class Rising(Classification):
    """A classification with a loss weight that rises by 0.01 per step."""

    def loss_weights(self, terms, step):
        return {"classification": step / 100}


def test_losses_are_weighted_as_at_the_last_step(finetuned, few, packed):
    encoded = dataclasses.replace(few.encoded(finetuned), objective=Rising(("bad", "good")))
    trained = dataclasses.replace(finetuned, export=finetuned.export._replace(numbers={"steps": 300}))
    ablation = Ablation(trained, encoded)
    assert ablation.unmasked.loss == pytest.approx(3.0 * packed.unmasked.loss)
    for name, values in ablation.importance({}).items():
        np.testing.assert_allclose(values, 3.0 * packed.importance({})[name], rtol=1e-4, atol=1e-8)
    change, expected = (each.changes([each.scores(MASKS[2])])["loss"].value for each in (ablation, packed))
    np.testing.assert_allclose(change, 3.0 * expected, rtol=1e-4)


def test_masked_words(pretrained, sentences):
    """The loss is the mean over masked tokens, and the importance of an example counts by their number."""
    material = texts_material(sentences[:6])
    encoded, ablation = material.encoded(pretrained), ablation_of(pretrained, material)
    for masks in (MASKS[0], MASKS[2]):
        sums, counts = word_losses(pretrained, encoded, masks)
        assert ablation.scores(masks).loss == pytest.approx(sums.sum() / counts.sum(), rel=1e-5)
    assert ablation.metric == "" and ablation.unmasked.metric is None
    importance = ablation.importance({})
    for name, place in ((BOTH[0], (0, 3)), (BOTH[0], (2, 1)), (BOTH[1], (1, 5))):
        slopes_M = slopes(lambda masks: word_losses(pretrained, encoded, masks)[0], name, place)
        assert importance[name][place] == pytest.approx(np.abs(slopes_M).sum() / counts.sum(), rel=1e-3)


def test_records_with_several_examples_are_units(finetuned, labeled):
    encoded = labeled.encoded(finetuned)
    encoded = dataclasses.replace(encoded, record_of=np.arange(len(encoded)) // 2)
    ablation = Ablation(finetuned, encoded)
    rows_RN, _ = packed_rows(encoded)
    assert rows_RN.shape == (len(encoded), 1) and ablation.units == len(encoded) // 2


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


@pytest.mark.parametrize(
    "scores, share",
    [
        ([1.0] * 11, 1.0),
        ([1.0, 0.95, 0.91, 0.89, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 0.2),
        ([1.0, *[0.0] * 10], 0.0),
        ([-2.0, -2.1, -2.19, -2.3, *[-9.0] * 7], 0.2),
        ([0.0, 0.0, -0.1, *[0.0] * 8], 0.1),
    ],
)
def test_the_share_up_to_which_a_score_is_kept(scores, share):
    assert kept_up_to(scores) == share
