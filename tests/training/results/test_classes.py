"""The report on classes equals scikit-learn's, and it warns of models that have not learned."""

import csv
import io
import re

import numpy as np
import pytest
from sklearn.metrics import classification_report, confusion_matrix

from bertjax.config.config import Task, from_dict
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.labeled.texts import LabeledText
from bertjax.objectives.finetuning.classification import Classification
from bertjax.objectives.finetuning.tagging import Tagging
from bertjax.training.evaluation import Evaluation
from bertjax.training.results.classes import ClassReport, accepted_lines, report_of, scored_sets

CLASSES = ("ant", "bee", "cat", "dog", "never true", "never guessed")


@pytest.fixture(scope="module")
def pairs():
    random = np.random.default_rng(0)
    labels = [CLASSES[number] for number in random.choice([0, 1, 2, 3, 5], 200)]
    guesses = [label if random.random() < 0.5 else CLASSES[random.choice(5)] for label in labels]
    guesses = ["ant" if guess == "never guessed" else guess for guess in guesses]
    return labels, guesses


def test_scores_are_those_of_scikit_learn(pairs):
    theirs = classification_report(*pairs, labels=CLASSES, output_dict=True, zero_division=0)
    ours = ClassReport.of(CLASSES, *pairs).scores
    for name, row in ours.items():
        for score in ("precision", "recall", "f1", "support"):
            value = row[score]
            assert value == pytest.approx(theirs[name]["f1-score" if score == "f1" else score]), (name, score)
    assert ours.keys() == {*CLASSES, "macro avg", "weighted avg"}


def test_the_confusion_matrix_is_that_of_scikit_learn(pairs):
    report = ClassReport.of(CLASSES, *pairs)
    expected = confusion_matrix(*pairs, labels=CLASSES)
    np.testing.assert_array_equal(report.confusion_CC, expected)
    header, *rows = csv.reader(io.StringIO(report.csv()))
    assert header[1:] == list(CLASSES) and [row[0] for row in rows] == list(CLASSES)
    np.testing.assert_array_equal([list(map(int, row[1:])) for row in rows], expected)
    texts = [text.get_text() for text in report.figure().axes[0].texts]
    assert sorted(texts) == sorted(str(number) for number in expected.ravel() if number)


def test_the_class_that_another_is_taken_for(pairs):
    report = ClassReport.of(CLASSES, *pairs)
    matrix = confusion_matrix(*pairs, labels=CLASSES)
    np.fill_diagonal(matrix, 0)
    for name, wrong in zip(CLASSES, matrix, strict=True):
        for other, count in report.scores[name]["taken_for"].items():
            assert count == wrong.max() == wrong[CLASSES.index(other)] and f"{other} ({count})" in report.text()
        assert len(report.scores[name]["taken_for"]) == wrong.any()
    assert sum(len(row.get("taken_for", {})) for row in report.scores.values()) > 3


def test_the_table_starts_with_the_worst_classes(pairs):
    text = ClassReport.of(CLASSES, *pairs).text()
    names = [line.strip("│ ").split("│")[0].strip() for line in text.splitlines()]
    assert names.index("never guessed") < names.index("ant") < names.index("macro avg")
    marked = ("[/INST]", "[red]")
    assert all(name in ClassReport.of(marked, marked, marked[::-1]).text() for name in marked)
    many = tuple(f"class {number:02}" for number in range(50))
    assert "30 classes with a higher F1 are not shown" in ClassReport.of(many, many, many).text()


def test_warnings():
    one_class = ClassReport.of(("no", "yes"), ["no", "yes"], ["yes", "yes"])
    (line,) = one_class.warnings(loss=0.3)
    assert line.startswith("every prediction is 'yes'; raise stages.0.epochs")
    near_chance, _ = one_class.warnings(loss=0.69)
    assert near_chance.startswith("the loss of 0.69 is near ln 2 = 0.69")
    too_sure, _ = one_class.warnings(loss=1.77)
    assert too_sure.startswith("the loss of 1.77 is above ln 2 = 0.69") and "lower stages.0.epochs" in too_sure
    learned = ClassReport.of(("no", "yes"), ["no", "yes", "no", "yes"], ["no", "yes", "no", "no"])
    assert learned.warnings(0.3) == []
    (line,) = learned.warnings(loss=1.13)
    assert "although 3 of 4 answers are right: the probabilities are too sure" in line


@pytest.mark.parametrize(
    "task, name, key",
    [
        (Task(Classification(("a", "b")), LabeledText()), "label", str),
        (Task(Tagging(("a", "b")), Tagged()), "tags", list),
    ],
)
def test_warnings_suggest_only_settings_of_the_objective(task, name, key):
    """A tagger has neither label_smoothing nor balanced, and most of its words are often of one class."""
    predictions = [{name: key("a"), "prediction": key("a")}, {name: key("b"), "prediction": key("a")}]
    lines = [line for loss in (0.3, 0.69, 1.8) for line in report_of(task, predictions).warnings(loss)]
    named = {setting for line in lines for setting in re.findall(r"objective\.(\w+)", line)}
    assert len(lines) == 5 and named == ({"balanced"} if name == "label" else set())


def test_reports_of_several_tasks_and_further_files():
    """Records of the held-out files of all tasks name their task; a further file belongs to one task."""
    task = {"objective": {"kind": "classification", "classes": ["no", "yes"]}, "examples": {"kind": "labeled_text"}}
    tasks = {"first": task, "second": {"objective": {"kind": "regression"}, "examples": {"kind": "labeled_text"}}}
    config = from_dict({"tasks": tasks})
    right, wrong = {"label": "no", "prediction": "no"}, {"label": "yes", "prediction": "no"}
    number = {"task": "second", "label": 1.0, "prediction": 1.0}
    further = Evaluation({"classification_loss": 0.5}, {}, [], [right, wrong], 0.0)
    evaluation = Evaluation(
        {"first/classification_loss": 0.25},
        {},
        [],
        [{"task": "first", **right}, number],
        0.0,
        further={"first/seen": further},
    )
    sets = {each.name: each for each in scored_sets(config, evaluation)}
    assert {name: each.loss for name, each in sets.items()} == {"first/heldout": 0.25, "first/seen": 0.5}
    assert sets["first/heldout"].report.confusion_CC.tolist() == [[1, 0], [0, 0]]
    assert sets["first/seen"].report.confusion_CC.tolist() == [[1, 0], [1, 0]]


@pytest.mark.parametrize("accepted, is_few", [(19, True), (20, False)])
def test_a_threshold_that_few_records_pass_is_warned_of(accepted, is_few):
    lines = accepted_lines("heldout", [{"accepted": number < accepted} for number in range(30)])
    assert lines[0] == f"accepted  {accepted} of 30 records of heldout are above objective.threshold"
    assert ["fewer than 20 accepted records" in line for line in lines[1:]] == [True] * is_few
    assert accepted_lines("heldout", [{"prediction": "a"}]) == []
