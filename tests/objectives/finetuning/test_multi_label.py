"""Classification with any number of labels: terms, metrics and baselines against scikit-learn and brute force."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, log_loss

from bertjax.data.examples import Vocabulary, add_special_tokens
from bertjax.objectives.finetuning.labels import MultiLabel

CLASSES = ("a", "b", "c")
OBJECTIVE = MultiLabel(CLASSES)
seeds = st.integers(0, 2**32 - 1)


def drawn(seed: int, rows: int = 4, slots: int = 3):
    """Logits [B, N, C] and a batch whose slots are partly empty."""
    rng = np.random.default_rng(seed)
    logits_BNC = rng.normal(size=(rows, slots, len(CLASSES))).astype(np.float32)
    labels_BNC = rng.integers(2, size=logits_BNC.shape).astype(np.float32)
    weights_BN = (rng.random((rows, slots)) < 0.7).astype(np.float32)
    weights_BN[0, 0] = 1.0
    return logits_BNC, {"labels_BN": labels_BNC * weights_BN[..., None], "weights_BN": weights_BN}


@settings(deadline=None)
@given(seeds)
def test_terms_and_metrics_are_those_of_scikit_learn(seed):
    logits_BNC, batch = drawn(seed)
    is_example = batch["weights_BN"] > 0
    labels_MC, logits_MC = batch["labels_BN"][is_example], logits_BNC[is_example].astype(np.float64)
    probabilities_MC = 1 / (1 + np.exp(-logits_MC))
    terms, metrics = OBJECTIVE.terms_of(jnp.array(logits_BNC), batch)
    expected = log_loss(labels_MC.ravel(), probabilities_MC.ravel(), labels=[0, 1]) * len(labels_MC)
    np.testing.assert_allclose(terms["multi_label"], expected, rtol=1e-5)
    guesses_MC = probabilities_MC > 0.5
    if guesses_MC.any() or labels_MC.any():
        f1 = float(metrics["f1"][0] / metrics["f1"][1])
        assert f1 == pytest.approx(f1_score(labels_MC, guesses_MC, average="micro", zero_division=0.0), abs=1e-6)
    exact = float(metrics["exact_match"][0] / metrics["exact_match"][1])
    assert exact == pytest.approx(accuracy_score(labels_MC, guesses_MC), abs=1e-6)


@settings(deadline=None)
@given(seeds)
def test_baselines_are_the_best_constant_answers(seed):
    _, batch = drawn(seed)
    labels_MC = batch["labels_BN"][batch["weights_BN"] > 0]
    answers = {name: np.tile(np.eye(3)[index], (len(labels_MC), 1)) for index, name in enumerate(CLASSES)}
    baselines = OBJECTIVE.baselines(batch, np.zeros(3))
    best = {name: float(np.max(total) / weight) for name, (total, weight) in baselines.items()}
    f1 = [f1_score(labels_MC, answer, average="micro", zero_division=0.0) for answer in answers.values()]
    assert best["f1_majority"] == pytest.approx(max(f1))
    exact = [accuracy_score(labels_MC, answer) for answer in (*answers.values(), np.zeros_like(labels_MC))]
    assert best["exact_match_majority"] == pytest.approx(max(exact))


def test_predictions_are_the_classes_above_the_threshold(store):
    labels_MC = np.array(list(itertools.product([0.0, 1.0], repeat=3))[:4], np.float32)
    examples = add_special_tokens([[20]] * 4, None, Vocabulary.of(store.tokenizer), {"label_set": labels_MC})
    outputs = {"probabilities": np.array([[0.1, 0.2, 0.3], [0.1, 0.7, 0.8], [0.9, 0.9, 0.9], [0.0, 0.65, 0.0]])}
    records = [{"text": str(number)} for number in range(4)]
    predicted = [record["prediction"] for record in OBJECTIVE.predictions(outputs, examples, records)]
    assert predicted == [[], ["b", "c"], ["a", "b", "c"], ["b"]]
    assert OBJECTIVE.predictions(outputs, examples, records)[1]["probabilities"] == {"a": 0.1, "b": 0.7, "c": 0.8}
    strict = MultiLabel(CLASSES, threshold=0.75)
    assert [r["prediction"] for r in strict.predictions(outputs, examples, records)] == [[], ["c"], ["a", "b", "c"], []]
    expected = f1_score(labels_MC, outputs["probabilities"] > 0.5, average="macro", zero_division=0.0)
    assert OBJECTIVE.score(outputs, examples, records) == {"f1": 0.6, "macro_f1": pytest.approx(expected)}
    right = [value for _, value, _ in OBJECTIVE.scores(outputs, examples, records)["exact_match"]]
    assert right == [1.0, 0.0, 0.0, 0.0]
