"""What a run prints and draws of its results, classes and label errors."""

import csv
import dataclasses
import io
import json
import re

import numpy as np
import pytest
from matplotlib import image
from rich.console import Console
from sklearn.metrics import classification_report, confusion_matrix

from bertjax.config.config import Task, from_dict
from bertjax.data.labeled.tagged import Tagged
from bertjax.data.labeled.texts import LabeledText
from bertjax.objectives.finetuning.classification import Classification
from bertjax.objectives.finetuning.tagging import Tagging
from bertjax.objectives.outputs import Sample
from bertjax.training.evaluation import Evaluation
from bertjax.training.results import curves, label_errors
from bertjax.training.results.classes import ClassReport, accepted_lines, report_of, scored_sets
from bertjax.training.results.report import (
    masked_sentence,
    print_summary,
    replacing_lines,
    show_samples,
    summary_of,
)
from bertjax.training.run.goodput import goodput_of
from bertjax.training.run.metrics import Totals
from bertjax.training.run.workdir import Workdir, append_jsonl

EVALUATION = Evaluation(
    metrics={"mlm_loss": 4.5, "mlm_accuracy": 0.25, "nsp_accuracy": 0.5},
    baselines={"unigram_loss": 6.25, "majority_accuracy": 0.03125, "nsp_majority": 0.4375},
    samples=[Sample("the [MASK] sat on [MASK] mat", ("cat", "the"), (("dog", "cat"), ("the", "a")))],
    predictions=[],
    rank=4.5,
)


def test_control_characters_of_a_corpus_do_not_reach_the_terminal():
    samples = [Sample("\x1b]0;title\x07 the [MASK]\r\u202e", ("\x9b2J",), (("a\nb", "\x00"),))]
    text = show_samples(7, dataclasses.replace(EVALUATION, samples=samples))
    assert text.splitlines()[1] == r"  \x1b]0;title\x07 the [MASK]\r\u202e"
    assert text.splitlines()[2].endswith(r"\x9b2J <- a\nb  \x00") and len(text.splitlines()) == 3


def summary(evaluation: Evaluation = EVALUATION) -> dict:
    totals = Totals(tokens=6000.0, seconds=120.0, compile_seconds=20.0)
    return summary_of(evaluation, totals, 40, goodput_of(totals, wall_seconds=200.0), 1000)


@pytest.mark.parametrize(
    "steps, expected",
    [
        (60, "task mine: from step 50 on the student's layers run alone"),
        (26, "task mine: the last step replaces a module of the teacher with probability 0.70, so the student's layers "
         "never run alone; set tasks.mine.objective.steps to about 12"),
    ],
)  # fmt: skip
def test_the_step_from_which_the_layers_of_a_student_run_alone(steps, expected):
    replacing = {"kind": "replacing", "objective": {"kind": "mlm"}, "teacher": "a", "first": 0.4, "steps": 50}
    tasks = {"mine": {"objective": replacing}, "other": {"objective": {"kind": "mlm"}}}
    stages = [{"steps": steps // 2}, {"steps": steps - steps // 2}]
    config = from_dict({"tasks": tasks, "stages": stages, "optimizer": {"warmup_steps": 2}})
    assert replacing_lines(config) == [expected]


def test_keys_of_the_summary():
    assert summary() == {
        "parameters": 1000,
        "eval": EVALUATION.metrics,
        "baseline": EVALUATION.baselines,
        "tokens": 6000.0,
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


def printed(summary: dict) -> str:
    console = Console(file=io.StringIO(), width=120)
    print_summary(summary, console)
    return console.file.getvalue()


def test_the_table_has_baselines_beside_the_metrics():
    text = printed(summary())
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if "│" in line}
    assert "4.5000" in rows["mlm_loss"] and "6.2500" in rows["mlm_loss"]
    assert "0.2500" in rows["mlm_accuracy"] and "0.0312" in rows["mlm_accuracy"]
    assert "0.5000" in rows["nsp_accuracy"] and "0.4375" in rows["nsp_accuracy"]
    assert "40 steps, 6,000 tokens in 2.0 min (50 tokens/s, everything included)" in " ".join(text.split())
    assert "step 100 s, data wait 0 s, compile 20 s" in text and "; 50.0% of 200 s are steps (the goodput)" in text


def test_the_table_and_the_samples_have_the_moving_average_beside_the_model():
    evaluation = dataclasses.replace(EVALUATION, ema=dataclasses.replace(EVALUATION, metrics={"mlm_loss": 4.25}))
    [row] = [line for line in printed(summary(evaluation)).splitlines() if "mlm_loss" in line]
    assert row.replace("│", " ").split() == ["mlm_loss", "4.5000", "4.2500", "6.2500"]
    assert show_samples(7, evaluation).splitlines()[1] == "step 7, held out, moving average: mlm_loss 4.2500"


@pytest.mark.parametrize(
    "texts, sentence",
    [
        (
            ["[CLS] 바람 [MASK] 분다. [SEP] [MASK] 온다. [SEP]", "[CLS] 비 [SEP]"],
            "[MASK] 온다.",
        ),
        (["[CLS] [MASK] 부\ufffd의소 [SEP] 채권의 [MASK] 취지 [SEP]"], "채권의 [MASK] 취지"),
        (["[CLS] [MASK] 부\ufffd의소 [SEP]"], "The [MASK] is old."),
        (["[CLS] “No!” [MASK] he. [SEP]"], "The [MASK] is old."),
        (["<s>Grüße <mask></s>"], "The [MASK] is old."),
        ([], "The [MASK] is old."),
    ],
)
def test_a_sentence_to_try_is_of_the_language_of_the_run(texts, sentence):
    assert masked_sentence([{"text": text, "answers": [], "guesses": []} for text in texts]) == sentence


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


RECORDS = [
    {"step": step, "train/mlm_loss": 9.0 - step, "train/mlm_accuracy": step / 10, "eval/heldout/mlm_loss": 9.5 - step}
    for step in (1, 2, 3)
]


@pytest.fixture
def workdir(tmp_path) -> Workdir:
    return Workdir.at(tmp_path)


def drawn(workdir, records, name=""):
    for record in records:
        append_jsonl(workdir.metrics, record)
    curves.draw(workdir.metrics, workdir.curves, name)
    return image.imread(workdir.curves)


def test_a_panel_for_every_loss_of_a_mixture(workdir):
    """Both tasks have one of the same name."""
    records = [{"step": 1, "train/a/mlm_loss": 1.0, "eval/heldout/b/mlm_loss": 2.0}]
    assert curves.losses_among(curves.metrics_in(records)) == ["a/mlm_loss", "b/mlm_loss"]
    assert drawn(workdir, records).shape[1] == 1200


def test_the_reference_of_a_configuration_is_drawn(workdir, tmp_path, monkeypatch):
    plain = drawn(workdir, RECORDS)
    band = {"step": [1, 2, 3], "mean": [8.0, 7.0, 6.0], "low": [7.5, 6.5, 5.5], "high": [8.5, 7.5, 6.5]}
    (tmp_path / "known.json").write_text(json.dumps({"seeds": 3, "mlm_loss": band}))
    monkeypatch.setattr(curves, "REFERENCES", tmp_path)
    assert curves.reference_of("unknown") is None
    curves.draw(workdir.metrics, workdir.curves, "known")
    with_reference = image.imread(workdir.curves)
    half = plain.shape[1] // 2
    assert (plain[:, :half] != with_reference[:, :half]).any()
    assert (plain[:, half + 20 :] == with_reference[:, half + 20 :]).all()


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
