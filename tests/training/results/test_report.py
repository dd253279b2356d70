"""What a run prints and draws of its results, classes and label errors."""

import re

import numpy as np
import pytest
from sklearn.metrics import classification_report

from bertjax.config.config import Task
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.labeled.texts import LabeledText
from bertjax.objectives.finetuning.labels import Classification, Tagging
from bertjax.objectives.host import Sample
from bertjax.training.evaluation import Evaluation
from bertjax.training.results import labeled_block
from bertjax.training.results.classes import ClassReport, accepted_lines, report_of, table_of, write_suspects
from bertjax.training.results.report import summary_of
from bertjax.training.run.metrics import Totals, goodput_of

EVALUATION = Evaluation(
    metrics={"mlm_loss": 4.5, "mlm_accuracy": 0.25, "nsp_accuracy": 0.5},
    baselines={"unigram_loss": 6.25, "majority_accuracy": 0.03125, "nsp_majority": 0.4375},
    samples=[Sample("the [MASK] sat on [MASK] mat", ("cat", "the"), (("dog", "cat"), ("the", "a")))],
    predictions=[],
    rank=4.5,
)


def summary(evaluation: Evaluation = EVALUATION) -> dict:
    totals = Totals(tokens=6000.0, seconds=120.0, compile_seconds=20.0)
    return summary_of(evaluation, totals, 40, goodput_of(totals, wall_seconds=200.0), 1000)


def test_keys_of_the_summary():
    assert summary() == {
        "parameters": 1000,
        "eval": EVALUATION.metrics,
        "baseline": EVALUATION.baselines,
        "tokens": 6000.0,
        "flops": 0.0,
        "steps": 40,
        "seconds": 120.0,
        "tokens_per_second": 50.0,
        "accounts": {
            "step": 100.0,
            "data_wait": 0.0,
            "compile": 20.0,
            "checkpoint": 0.0,
            "evaluation": 0.0,
            "wall": 200.0,
            "goodput": 0.5,
        },
    }


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


def test_the_table_starts_with_the_worst_classes(pairs):
    text = table_of(ClassReport.of(CLASSES, *pairs).scores)
    names = [line.strip("│ ").split("│")[0].strip() for line in text.splitlines()]
    assert names.index("never guessed") < names.index("ant") < names.index("macro avg")
    marked = ("[/INST]", "[red]")
    assert all(name in table_of(ClassReport.of(marked, marked, marked[::-1]).scores) for name in marked)
    many = tuple(f"class {number:02}" for number in range(50))
    assert "30 classes with a higher F1 are not shown" in table_of(ClassReport.of(many, many, many).scores)


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


@pytest.mark.parametrize("accepted, is_few", [(19, True), (20, False)])
def test_a_threshold_that_few_records_pass_is_warned_of(accepted, is_few):
    lines = accepted_lines("heldout", [{"accepted": number < accepted} for number in range(30)])
    assert lines[0] == f"accepted  {accepted} of 30 records of heldout are above objective.threshold"
    assert ["fewer than 20 accepted records" in line for line in lines[1:]] == [True] * is_few
    assert accepted_lines("heldout", [{"prediction": "a"}]) == []


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


def test_the_suspects_are_those_of_cleanlab(tmp_path):
    probabilities_MC, labels_M, true_M = made()
    indices, probable = labeled_block.suspects_of(probabilities_MC, labels_M)
    assert indices.tolist() == CLEANLAB
    is_wrong_M = labels_M != true_M
    assert is_wrong_M[indices].mean() > 3 * is_wrong_M.mean()
    assert (probable != labels_M[indices]).all()
    rows = zip(labels_M.astype(str), probabilities_MC.tolist())
    answers = [{"label": label, "probabilities": dict(zip("0123456", row))} for label, row in rows]
    answers = [answer | {"_where": f"a.json: object {number + 2}", "line": ""} for number, answer in enumerate(answers)]
    assert write_suspects(tmp_path, "all", Task(Classification(), LabeledText()), answers) == len(CLEANLAB)
    lines = (tmp_path / "all-suspects.csv").read_text().splitlines()[1:]
    assert [int(line.partition(",")[0]) - 2 for line in lines] == CLEANLAB, "the objects of the file"
