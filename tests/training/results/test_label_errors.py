"""Confident learning: the suspects of cleanlab, in its order."""

import csv
import io

import numpy as np

from bertjax.training.results import label_errors

# cleanlab 2.9.0: find_label_issues(labels_M, probabilities_MC, filter_by="confident_learning",
# return_indices_ranked_by="self_confidence")
CLEANLAB = [102, 15, 64, 54, 107, 33, 58, 85, 11, 39, 68, 28, 49, 29, 100, 91]


def made(count: int = 120, classes: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return probabilities of a fair classifier, labels of which 15% are wrong, and the true classes."""
    draw = np.random.default_rng(0)
    true_M = draw.integers(0, classes, count)
    logits_MC = draw.normal(size=(count, classes))
    logits_MC[np.arange(count), true_M] += 2.0
    rounded_MC = np.round(np.exp(logits_MC) / np.exp(logits_MC).sum(1, keepdims=True), 4)
    labels_M = np.where(draw.random(count) < 0.15, (true_M + 1) % classes, true_M)
    return rounded_MC / rounded_MC.sum(1, keepdims=True), labels_M, true_M


def test_the_suspects_are_those_of_cleanlab():
    probabilities_MC, labels_M, true_M = made()
    indices, probable = label_errors.suspects_of(probabilities_MC, labels_M)
    assert indices.tolist() == CLEANLAB
    is_wrong_M = labels_M != true_M
    assert is_wrong_M[indices].mean() > 3 * is_wrong_M.mean()
    assert (probable != labels_M[indices]).all()


def test_equal_probabilities_and_no_records():
    indices, _ = label_errors.suspects_of(np.full((6, 3), 1 / 3), np.array([0, 1, 2, 0, 1, 2]))
    assert not len(indices)
    assert label_errors.suspect_records([], "label") == []


def test_a_class_of_one_fold_is_never_suggested():
    """The model that predicts its only record has not seen the class, so that nearly every record reaches it."""
    names = ["a", "b", "rare"]
    rows = [("a", [0.6, 0.38, 0.02]), ("b", [0.38, 0.6, 0.02])] * 20
    rows += [("a", [0.48, 0.5, 0.02]), ("rare", [0.5, 0.4995, 0.0005])]
    records = [
        {"text": "", "label": label, "probabilities": dict(zip(names, p)), "fold": index % 3}
        for index, (label, p) in enumerate(rows)
    ]
    assert [each["label"] for each in label_errors.suspect_records(records, "label")] == []
    one_model = [{name: value for name, value in record.items() if name != "fold"} for record in records]
    assert {each["suggested"] for each in label_errors.suspect_records(one_model, "label")} == {"rare"}


def test_records_and_their_file():
    probabilities_MC, labels_M, _ = made()
    records = [
        {
            "text": f"=text {index}",
            "label": f"c{label}",
            "prediction": "",
            "probabilities": dict(zip("c0 c1 c2 c3".split(), p)),
        }
        for index, (label, p) in enumerate(zip(labels_M, probabilities_MC.tolist()))
    ]
    suspects = label_errors.suspect_records(records, "label")
    assert [each["text"] for each in suspects] == [f"=text {index}" for index in CLEANLAB]
    rows = list(csv.DictReader(io.StringIO(label_errors.csv_of(suspects))))
    assert rows[0]["text"] == "'=text 102", "a spreadsheet must not read a text as a formula"
    assert [row["suggested"] for row in rows] == [each["suggested"] for each in suspects]
