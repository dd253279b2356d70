"""Calibration: the temperature, the calibration error and the threshold are those of their definitions."""

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from bertjax.objectives.finetuning import calibration
from bertjax.objectives.finetuning.classification import Classification
from bertjax.runtime.errors import UserError


def drawn(temperature: float, count: int = 4000, classes: int = 3, seed: int = 0):
    """Probabilities that are too sure by this temperature, and labels drawn at temperature 1."""
    random = np.random.default_rng(seed)
    logits_MC = random.normal(0.0, 2.0, (count, classes))
    labels_M = np.array([random.choice(classes, p=p) for p in softmax(logits_MC, axis=-1)])
    return softmax(logits_MC * temperature, axis=-1).astype(np.float32), labels_M


def loss(probabilities_MC: np.ndarray, labels_M: np.ndarray, temperature: float) -> float:
    """The mean cross-entropy, computed by scipy."""
    scores_MC = log_softmax(np.log(probabilities_MC.astype(np.float64)) / temperature, axis=-1)
    return -scores_MC[np.arange(len(labels_M)), labels_M].mean()


@pytest.mark.slow
@pytest.mark.parametrize("true", [0.4, 1.0, 3.0])
def test_the_temperature_minimizes_the_cross_entropy(true):
    probabilities_MC, labels_M = drawn(true)
    temperature = calibration.fit_temperature(probabilities_MC, labels_M)
    assert temperature == pytest.approx(true, rel=0.1)
    grid = np.exp(np.linspace(np.log(true / 2), np.log(true * 2), 2001))
    losses = [loss(probabilities_MC, labels_M, value) for value in grid]
    assert temperature == pytest.approx(grid[np.argmin(losses)], rel=1e-3)
    scaled_MC = calibration.scaled(probabilities_MC, temperature)
    np.testing.assert_allclose(scaled_MC, softmax(np.log(probabilities_MC.astype(float)) / temperature, axis=-1))
    before, after = (calibration.expected_calibration_error(p, labels_M) for p in (probabilities_MC, scaled_MC))
    assert after < 0.03 and (true == 1.0 or after < before / 2)


def test_probabilities_that_float32_rounds_to_zero_stay_finite():
    probabilities_MC = np.array([[1.0, 0.0], [1.0, 0.0], [0.3, 0.7]], np.float32)
    labels_M = np.array([0, 1, 1])
    assert 10 < calibration.fit_temperature(probabilities_MC, labels_M) <= 100
    assert np.isfinite(calibration.scaled(probabilities_MC, 0.01)).all()


def test_the_calibration_error_of_a_small_example():
    # Two bins: (0.8, 0.8667] with one of two right, and (0.9333, 1] with one right.
    probabilities_MC = np.array([[0.85, 0.15], [0.85, 0.15], [0.05, 0.95]])
    expected = (2 * abs(0.5 - 0.85) + abs(1.0 - 0.95)) / 3
    assert calibration.expected_calibration_error(probabilities_MC, np.array([0, 1, 1])) == pytest.approx(expected)


def best_threshold(confidences_M, is_right_M, precision: float) -> int:
    """The most predictions that one threshold accepts at this precision, by trying all of them."""
    counts = [0]
    for threshold in (*confidences_M, 0.0):
        accepted = confidences_M > threshold
        if accepted.any() and is_right_M[accepted].mean() >= precision:
            counts.append(accepted.sum())
    return max(counts)


@pytest.mark.parametrize("precision", [0.5, 0.8, 0.95, 1.0])
def test_the_threshold_accepts_the_most_predictions_at_its_precision(precision):
    random = np.random.default_rng(1)
    for _ in range(30):
        confidences_M = random.integers(34, 100, 40) / 100  # with ties
        is_right_M = random.random(40) < confidences_M
        threshold = calibration.fit_threshold(confidences_M, is_right_M, precision)
        accepted_M = confidences_M > threshold
        assert accepted_M.sum() == best_threshold(confidences_M, is_right_M, precision)
        assert not accepted_M.any() or is_right_M[accepted_M].mean() >= precision


def test_an_objective_reports_what_it_fits_and_applies_what_is_stored():
    probabilities_MC, labels_M = drawn(3.0)
    examples = type("Examples", (), {"labels": {"label": labels_M}})()
    outputs, records = {"probabilities": probabilities_MC}, [{"text": "a"}] * len(labels_M)
    objective = Classification(("a", "b", "c"), precision=0.9)
    assert objective.traits.tuned_settings == ("temperature", "threshold")
    scores = objective.score(outputs, examples, records)
    assert scores["ece_calibrated"] < scores["ece"] and scores["precision"] >= 0.9 and 0 < scores["coverage"] < 1
    assert "accepted" not in objective.predictions(outputs, examples, records)[0]
    stored = Classification(("a", "b", "c"), temperature=scores["temperature"], threshold=scores["threshold"])
    assert stored.score(outputs, examples, records) == pytest.approx(scores)
    predictions = stored.predictions(outputs, examples, records)
    assert np.mean([record["accepted"] for record in predictions]) == pytest.approx(scores["coverage"])
    scaled_C = calibration.scaled(probabilities_MC[:1], scores["temperature"])[0]
    assert list(predictions[0]["probabilities"].values()) == pytest.approx(scaled_C.tolist(), abs=1e-6)
    assert Classification().traits.tuned_settings == ("temperature",)


@pytest.mark.parametrize("setting", [{"temperature": 0.0}, {"precision": 1.5}, {"threshold": -0.1}])
def test_bad_settings(setting):
    with pytest.raises(UserError, match=f"objective.{next(iter(setting))}="):
        Classification(**setting)
