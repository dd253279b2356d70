"""Answers and scores in numpy: those of the objectives and of scikit-learn."""

import jax
import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from bertjax.objectives.finetuning.classification import Classification
from bertjax.objectives.finetuning.multi_label import MultiLabel
from bertjax.serving.description import Description
from bertjax.serving.evaluate import scores_by_class, scores_of
from bertjax.serving.model import answers_of, values_of

LABELS = ("a", "b", "c")


def described(task, **settings):
    labels = () if task in ("regression", "embedding") else settings.pop("labels", LABELS)
    return Description(task, 8, 0, labels=labels, **settings)


def drawn(shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32) * 3


def test_answers_are_those_of_the_objectives():
    logits_MC, records = drawn((20, 3)), [{"text": str(number)} for number in range(20)]
    outputs = {"probabilities": np.asarray(jax.nn.softmax(logits_MC))}
    ours = answers_of(described("classification"), values_of(described("classification"), logits_MC))
    for own, theirs in zip(ours, Classification(classes=LABELS).predictions(outputs, None, records), strict=True):
        assert own["prediction"] == theirs["prediction"]
        assert own["probabilities"] == pytest.approx(theirs["probabilities"], abs=2e-6)
    outputs = {"probabilities": np.asarray(jax.nn.sigmoid(logits_MC))}
    several = described("multi_label", threshold=0.7)
    theirs = MultiLabel(classes=LABELS, threshold=0.7).predictions(outputs, None, records)
    for own, expected in zip(answers_of(several, values_of(several, logits_MC)), theirs, strict=True):
        assert own["prediction"] == expected["prediction"]
        assert own["probabilities"] == pytest.approx(expected["probabilities"], abs=2e-6)


def test_an_answer_is_accepted_above_the_threshold():
    description = described("classification", threshold=0.6, labels=("no", "yes"))
    sure, unsure = answers_of(description, np.array([[0.1, 0.9], [0.45, 0.55]]))
    assert sure["accepted"] is True and unsure["accepted"] is False
    assert sure["prediction"] == unsure["prediction"] == "yes"
    assert "accepted" not in answers_of(described("classification"), np.eye(3))[0]


def test_numbers_and_vectors():
    numbers = values_of(described("regression"), np.array([[0.25], [-2.0]], np.float32))
    assert answers_of(described("regression"), numbers) == [{"prediction": 0.25}, {"prediction": -2.0}]
    assert values_of(described("regression", activation="sigmoid"), np.zeros((1, 1), np.float32)) == 0.5
    [answer] = answers_of(described("embedding"), np.array([[0.1, -3.0]], np.float32))
    assert answer == {"embedding": [0.1, -3.0]}  # the shortest decimals


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_of_classes_are_those_of_scikit_learn(classes):
    draw = np.random.default_rng(classes)
    labels, values = draw.integers(0, classes, 60), draw.random((60, classes))
    description = described("classification", labels=LABELS[:classes])
    scores, guesses = scores_of(description, values, labels), values.argmax(axis=-1)
    how = {"average": "binary" if classes == 2 else "macro"}
    assert scores["accuracy"] == pytest.approx(metrics.accuracy_score(labels, guesses))
    assert scores["f1"] == pytest.approx(metrics.f1_score(labels, guesses, **how))
    assert scores["matthews"] == pytest.approx(metrics.matthews_corrcoef(labels, guesses))
    columns = metrics.precision_recall_fscore_support(labels, guesses)
    for number, by_class in enumerate(scores_by_class(description, values, labels).values()):
        assert list(by_class) == ["precision", "recall", "f1", "support"]
        assert list(by_class.values()) == pytest.approx([column[number] for column in columns])


def test_scores_of_accepted_answers():
    values, labels = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7]]), np.array([0, 1, 1, 1])
    description = described("classification", threshold=0.65, labels=("no", "yes"))
    scores = scores_of(description, values, labels)
    assert (scores["coverage"], scores["precision"]) == (0.75, pytest.approx(2 / 3))
    none = scores_of(described("classification", threshold=1.0, labels=("no", "yes")), values, labels)
    assert none["coverage"] == 0.0 and "precision" not in none


def test_scores_of_sets_are_those_of_scikit_learn():
    draw = np.random.default_rng(0)
    labels, values = (draw.random((40, 3)) > 0.6).astype(np.float32), draw.random((40, 3))
    labels[:, 2], values[:, 2] = 0.0, 0.1  # a class that neither the file nor the answers have
    scores, guesses = scores_of(described("multi_label"), values, labels), values > 0.5
    assert scores["f1"] == pytest.approx(metrics.f1_score(labels, guesses, average="micro", zero_division=0.0))
    assert scores["macro_f1"] == pytest.approx(metrics.f1_score(labels, guesses, average="macro", zero_division=0.0))
    assert scores["exact_match"] == pytest.approx(metrics.accuracy_score(labels, guesses))


def test_scores_of_numbers_are_those_of_scipy():
    draw = np.random.default_rng(0)
    labels, numbers = draw.integers(0, 5, 40).astype(np.float32), draw.normal(size=40).round(1)
    scores = scores_of(described("regression"), numbers, labels)
    assert scores["pearson"] == pytest.approx(stats.pearsonr(labels, numbers).statistic)
    assert scores["spearman"] == pytest.approx(stats.spearmanr(labels, numbers).statistic)
    assert scores_of(described("regression"), np.ones(40), labels) == {"pearson": 0.0, "spearman": 0.0}
