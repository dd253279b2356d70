"""Page sections about a classifier: scores by class, confusion, calibration, threshold, mistakes, suspect labels.

The runs of `examples.folds` have one of all records, beside their scores (`of_folds`).
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.analysis import drawing
from bertjax.analysis.drawing import Figure
from bertjax.analysis.page import Section, Table, table
from bertjax.config.config import Task
from bertjax.data.labeled import labels as label_names
from bertjax.data.labeled.base import Record
from bertjax.objectives.finetuning import calibration
from bertjax.objectives.wrapper import unwrapped
from bertjax.runtime import storage
from bertjax.runtime.errors import UserError, cut_text
from bertjax.training.results import folds, labeled_block
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
    paragraph = f"{count} runs: each record of {task.examples.train} is scored by the run that was not trained on it."
    scores = table("classes/folds", headings, folds.rows_of(spread))
    sections = [Section("folds", "The folds", (paragraph,), (scores,))]
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
    matrix_CC = report.confusion_CC
    count, right, most = int(matrix_CC.sum()), int(np.trace(matrix_CC)), int(matrix_CC.sum(axis=1).max())
    summary = (
        f"{right:,} of {count:,} answers are right ({right / count:.1%}). Always answering the most frequent class "
        f"would be right in {most:,} ({most / count:.1%})."
    )
    blocks: list[Figure | Table] = [_scores(report), _confusion(report)]
    if has_probabilities(task, predictions):
        label, texts = task.examples.label, task.examples.inputs
        probabilities_MC, labels_M = labeled_block.arrays_of(predictions, label)
        confidences_M = probabilities_MC.max(axis=1)
        is_right_M = probabilities_MC.argmax(axis=1) == labels_M
        error = calibration.expected_calibration_error(probabilities_MC, labels_M)
        wrong = [index for index in np.argsort(-confidences_M, kind="stable") if not is_right_M[index]][:_SHOWN]
        suspects = labeled_block.suspect_records(predictions, label)
        blocks += [
            _reliability(confidences_M, is_right_M, error),
            _threshold(confidences_M, is_right_M, _setting(task, metrics)),
            table(
                "classes/mistakes",
                ("text", "label", "answer", "probability"),
                (
                    (
                        *_text_and_label(predictions[index], label, texts),
                        predictions[index]["prediction"],
                        f"{sure:.3f}",
                    )
                    for index, sure in zip(wrong, confidences_M[wrong])
                ),
            ),
            table(
                "classes/suspects",
                ("text", "label", "probable class", "probability of the label"),
                (
                    (*_text_and_label(each, label, texts), each["suggested"], f"{each['label_probability']:.3f}")
                    for each in suspects[:_SHOWN]
                ),
                count=len(suspects),
            ),
        ]
    # Several sets have the same figures, whose names are unique on the page.
    blocks = [
        dataclasses.replace(each, name=f"{name}-{each.name}") if isinstance(each, Figure) else each for each in blocks
    ]
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
    return table("classes/scores", ("class", "precision", "recall", "F1", "examples", "most often taken for"), rows)


def _confusion(report: ClassReport) -> Figure:
    mistakes = [
        (times, f"The most frequent mistake is {name} for {other}, {times:,} times.")
        for name, row in report.scores.items()
        for other, times in row.get("taken_for", {}).items()
    ]
    worst = max(mistakes, key=lambda mistake: mistake[0], default=(0, ""))[1]
    return drawing.figure("classes/confusion", drawing.Chart("Confusion matrix.", report.figure), worst=worst)


def _reliability(confidences_M: np.ndarray, is_right_M: np.ndarray, error: float) -> Figure:
    """Draw accuracy over confidence (DeGroot and Fienberg, 1983; Guo et al., 2017, figure 1)."""
    bins_M = calibration.bins_of(confidences_M)
    confidence, accuracy = (
        [float(values_M[bins_M == each].mean()) for each in np.unique(bins_M)]
        for values_M in (confidences_M, is_right_M)
    )
    lines = {"answers": (confidence, accuracy), "as sure as right": ([0.0, 1.0], [0.0, 1.0])}
    chart = drawing.curves(lines, "mean probability of the answers", "share of right answers")
    return drawing.figure("classes/reliability", chart, bins=calibration.BINS, error=error)


def _setting(task: Task, metrics: Mapping[str, float]) -> str:
    """Describe the threshold that the run has, or how to get one."""
    objective = unwrapped(task.objective)
    precision, threshold = getattr(objective, "precision", None), getattr(objective, "threshold", None)
    if threshold is not None:
        return f"The run sets `objective.threshold={threshold:g}`."
    if precision is None:
        return "`objective.precision=0.95` finds the threshold for a precision, which `predict` then uses."
    found = f": {metrics['threshold']:.4f}, fitted on the held-out records" if "threshold" in metrics else ""
    return f"The run looks for the threshold for `objective.precision={precision:g}`{found}."


def _threshold(confidences_M: np.ndarray, is_right_M: np.ndarray, setting: str) -> Figure:
    """Draw what accepting only answers above a threshold gives."""
    order = np.argsort(-confidences_M, kind="stable")
    count, right, thresholds = np.arange(1, len(order) + 1), np.cumsum(is_right_M[order]), confidences_M[order]
    lines = {
        "precision: right among accepted": (thresholds, right / count),
        "recall: accepted and right": (thresholds, right / len(order)),
        "coverage: accepted": (thresholds, count / len(order)),
    }
    reached = ", ".join(
        f"{precision:.0%} of {(right / count >= precision).nonzero()[0].max(initial=-1) + 1:,}"
        for precision in (0.9, 0.95, 0.99)
    )
    chart = drawing.curves(lines, "probability above which an answer is accepted", "share", markers=False)
    return drawing.figure("classes/threshold", chart, setting=setting, reached=reached)


def _text_and_label(record: Record, label: str, texts: Sequence[str]) -> tuple[str, str]:
    shown = " | ".join(cut_text(str(record.get(text, "")), _TEXT_WIDTH // len(texts)) for text in texts)
    return shown, label_names.class_of(record[label])
