"""Page sections about a classifier: scores by class, confusion, calibration, threshold, mistakes, suspect labels.

The runs of `examples.folds` have one of all records, beside their scores (`of_folds`).
"""

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.drawing import Figure
from bertjax.analysis.page import Section, Table
from bertjax.config.config import Task
from bertjax.data.labeled import labels as label_names
from bertjax.data.labeled.base import Record
from bertjax.objectives.finetuning import calibration
from bertjax.objectives.wrapper import unwrapped
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError, cut_text
from bertjax.training.results import folds, label_errors
from bertjax.training.results.classes import ClassReport, has_probabilities, report_of
from bertjax.training.run.record import RunRecord, read_record
from bertjax.training.run.workdir import Workdir, read_json, read_jsonl

_SHOWN = 15
_TEXT_WIDTH = 200


def sections_of(workdir: Workdir, record: RunRecord) -> list[Section]:
    """Return one section for each held-out set with predicted classes; none for a run without."""
    sections = []
    metrics = read_json(workdir.summary, "eval")["eval"] if storage.exists(workdir.summary) else {}
    for path in sorted(workdir.predictions.glob("*.jsonl")) if workdir.predictions.exists() else ():
        predictions, name = read_jsonl(path), path.stem
        for task_name, task in record.config.tasks.items():
            own = [each for each in predictions if each.get("task", task_name) == task_name]
            if report := report_of(task, own) if own else None:
                title = f"Classes of {name}" if len(record.config.tasks) == 1 else f"Classes of {name}, {task_name}"
                tuned = record.config.metrics_of(task_name, metrics)
                sections.append(section_of(f"classes-{len(sections)}", title, task, report, own, tuned))
    return sections


def of_folds(path: str, trust_code: bool = False) -> list[Section]:
    """Return the sections about a folder of folds.

    Args:
      path: the folder.
      trust_code: whether to import modules that the runs name as `module:Class`.

    Raises:
      UserError: not all folds are trained, or a file is damaged.
    """
    files = Workdir.at(path)
    if not storage.exists(files.root / folds.SUMMARY):
        raise UserError(f"{path!r} has folds that are not trained yet; run the command that started them again")
    spread = read_json(files.root / folds.SUMMARY, "metrics", "baseline")
    task = read_record(Workdir(files.root / "fold=0"), trust_code).config.task
    count = len(next(iter(spread["metrics"].values()))["values"])
    headings = ("metric", "mean", "lowest", "highest", "most frequent class")
    caption = "Held-out scores. Folds share most of their training records: their range is not a confidence interval."
    paragraph = f"{count} runs: each record of {task.examples.train} is scored by the run that was not trained on it."
    rows = tuple(folds.rows_of(spread))
    sections = [Section("folds", "The folds", (paragraph,), (Table(caption, headings, rows),))]
    predictions = read_jsonl(files.predictions / f"{folds.STEM}.jsonl")
    if report := report_of(task, predictions):
        sections.append(section_of("classes-0", "Classes of all folds", task, report, predictions, {}))
    return sections


def section_of(
    name: str, title: str, task: Task, report: ClassReport, predictions: list[Record], metrics: Mapping[str, float]
) -> Section:
    """Return the section about a task's predictions on records with classes.

    Args:
      name: id of the section in the page.
      title: its title.
      task: the task.
      report: scores by class.
      predictions: the records with predictions.
      metrics: scores of the set, which may hold a tuned threshold.
    """
    blocks: list[Figure | Table] = [_scores(report), _confusion(name, report)]
    if has_probabilities(task, predictions):
        label, texts = task.examples.label, task.examples.inputs
        probabilities_MC, labels_M = label_errors.arrays_of(predictions, label)
        confidences_M = probabilities_MC.max(axis=1)
        is_right_M = probabilities_MC.argmax(axis=1) == labels_M
        blocks += [
            _reliability(name, confidences_M, is_right_M, probabilities_MC, labels_M),
            _threshold(name, confidences_M, is_right_M, _threshold_caption(task, metrics)),
            surest_mistakes(predictions, confidences_M, is_right_M, label, texts),
            _suspects(label_errors.suspect_records(predictions, label), label, texts),
        ]
    matrix_CC = report.confusion_CC
    count, right, most = int(matrix_CC.sum()), int(np.trace(matrix_CC)), int(matrix_CC.sum(axis=1).max())
    summary = (
        f"{right:,} of {count:,} answers are right ({right / count:.1%}). Always answering the most frequent class "
        f"would be right in {most:,} ({most / count:.1%})."
    )
    return Section(name, title, (summary,), tuple(blocks))


def _scores(report: ClassReport) -> Table:
    rows = [
        (
            name,
            *(f"{row[score]:.3f}" for score in ("precision", "recall", "f1")),
            f"{row['support']:,}",
            "".join(f"{other} ({times:,})" for other, times in row.get("taken_for", {}).items()),
        )
        for name, row in report.scores.items()
    ]
    rows = [*sorted(rows[:-2], key=lambda row: row[3]), *rows[-2:]]  # the last two are the averages
    headings = ("class", "precision", "recall", "F1", "examples", "most often taken for")
    return Table("Scores by class, the lowest F1 first.", headings, tuple(rows))


def _confusion(name: str, report: ClassReport) -> Figure:
    caption = "True classes are rows, predictions are columns. Colors are shares of the true class, numbers examples."
    worst = max(report.scores.items(), key=lambda item: max(item[1].get("taken_for", {"": 0}).values(), default=0))
    taken = next(iter(worst[1].get("taken_for", {}).items()), None)
    alternative = f"The most frequent mistake is {worst[0]} for {taken[0]}, {taken[1]:,} times." if taken else ""
    return Figure(f"{name}-confusion", caption, f"Confusion matrix. {alternative}", drawing.style()(report.figure))


def _reliability(
    name: str, confidences_M: np.ndarray, is_right_M: np.ndarray, probabilities_MC: np.ndarray, labels_M: np.ndarray
) -> Figure:
    """Draw accuracy over confidence (DeGroot and Fienberg, 1983; Guo et al., 2017, figure 1)."""
    bins_M = calibration.bins_of(confidences_M)
    filled = np.unique(bins_M)
    confidence = [float(confidences_M[bins_M == each].mean()) for each in filled]
    accuracy = [float(is_right_M[bins_M == each].mean()) for each in filled]
    lines = {"answers": (confidence, accuracy), "as sure as right": ([0.0, 1.0], [0.0, 1.0])}
    draw = functools.partial(drawing.curves, lines, "mean probability of the answers", "share of right answers")
    error = calibration.expected_calibration_error(probabilities_MC, labels_M)
    caption = (
        f"Answers by their probability, in {calibration.BINS} bins of equal width. Below the diagonal the model is too "
        f"sure. The expected calibration error over these bins is {error:.3f}."
    )
    bins = "; ".join(f"{sure:.2f}: {right:.2f}" for sure, right in zip(confidence, accuracy, strict=True))
    alternative = f"Share of right answers by confidence: {bins}"
    return Figure(f"{name}-reliability", caption, alternative, draw)


def _threshold_caption(task: Task, metrics: Mapping[str, float]) -> str:
    """Describe what a threshold is for, and the one that the run has or how to get one."""
    accepting = "If only answers above a probability are accepted and a person gets the others."
    objective = unwrapped(task.objective)
    precision, threshold = getattr(objective, "precision", None), getattr(objective, "threshold", None)
    if threshold is not None:
        return f"{accepting} The run sets `objective.threshold={threshold:g}`."
    if precision is None:
        return f"{accepting} `objective.precision=0.95` finds the threshold for a precision, which `predict` then uses."
    found = f": {metrics['threshold']:.4f}, fitted on the held-out records" if "threshold" in metrics else ""
    return f"{accepting} The run looks for the threshold for `objective.precision={precision:g}`{found}."


def _threshold(name: str, confidences_M: np.ndarray, is_right_M: np.ndarray, caption: str) -> Figure:
    """Draw what accepting only answers above a threshold gives."""
    order = np.argsort(-confidences_M, kind="stable")
    count = np.arange(1, len(order) + 1)
    right = np.cumsum(is_right_M[order])
    thresholds = confidences_M[order].tolist()
    lines = {
        "precision: right among accepted": (thresholds, (right / count).tolist()),
        "recall: accepted and right": (thresholds, (right / len(order)).tolist()),
        "coverage: accepted": (thresholds, (count / len(order)).tolist()),
    }
    x = "probability above which an answer is accepted"
    draw = functools.partial(drawing.curves, lines, x, "share", markers=False)
    reached = [
        f"{precision:.0%} right with {(right / count >= precision).nonzero()[0].max(initial=-1) + 1:,} accepted"
        for precision in (0.9, 0.95, 0.99)
    ]
    return Figure(f"{name}-threshold", caption, "; ".join(reached), draw)


def surest_mistakes(
    predictions: Sequence[Record],
    confidences_M: np.ndarray,
    is_right_M: np.ndarray,
    label: str,
    texts: Sequence[str],
) -> Table:
    """Return a table with the wrong answers of the highest probability.

    Args:
      predictions: M records with their prediction.
      confidences_M: probabilities of the predictions.
      is_right_M: bool.
      label, texts: names of the fields with the label and with the texts.
    """
    wrong = [index for index in np.argsort(-confidences_M, kind="stable") if not is_right_M[index]][:_SHOWN]
    rows = [
        (_shown(record, texts), label_names.class_of(record[label]), record["prediction"], f"{confidence:.3f}")
        for record, confidence in ((predictions[index], confidences_M[index]) for index in wrong)
    ]
    return Table("The mistakes that the model is surest of.", ("text", "label", "answer", "probability"), tuple(rows))


def _suspects(suspects: Sequence[Record], label: str, texts: Sequence[str]) -> Table:
    rows = [
        (_shown(each, texts), label_names.class_of(each[label]), each["suggested"], f"{each['label_probability']:.3f}")
        for each in suspects[:_SHOWN]
    ]
    caption = (
        f"{len(suspects):,} labels that are probably wrong, by confident learning (Northcutt et al., 2021, arXiv "
        "1911.00068), the most suspect first. All of them are in the file -suspects.csv beside the predictions."
    )
    return Table(caption, ("text", "label", "probable class", "probability of the label"), tuple(rows))


def _shown(record: Record, texts: Sequence[str]) -> str:
    return " | ".join(cut_text(str(record.get(text, "")), _TEXT_WIDTH // len(texts)) for text in texts)
