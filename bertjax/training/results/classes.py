"""Scores per class and confusion matrices, from the predictions of an evaluation.

The numbers equal scikit-learn's `classification_report` and `confusion_matrix`.
"""

import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from etils import epath
from rich.console import Console

from bertjax.config.config import Config, Task
from bertjax.data.labeled import labels as label_names
from bertjax.data.labeled.base import WHERE, Record, line_of
from bertjax.objectives.finetuning.answers import ratio, scores_by_class, without_location
from bertjax.objectives.wrapper import unwrapped
from bertjax.runtime import storage
from bertjax.training.evaluation import HELDOUT, Evaluation
from bertjax.training.results import curves, labeled_block
from bertjax.training.run.tables import Table, csv_text
from bertjax.training.run.workdir import Workdir

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The terminal table shows this many classes, starting from the lowest F1.
_SHOWN = 20
# With more classes, numbers in the cells of the figure would overlap.
_MOST_NUMBERS = 30
# Fewer accepted records, or fewer held-out records, are warned of.
_FEWEST = 20
# Factors on ln C, the loss of a uniform prediction over C classes. A loss between them has hardly fallen. A loss above
# the second one comes from confident wrong answers.
_UNTRAINED, _OVERCONFIDENT = 0.9, 1.1


@dataclasses.dataclass(frozen=True)
class ClassReport:
    """Confusion matrix with names.

    Attributes:
      classes: names of the C classes.
      confusion_CC: int64, number of examples by true class (row) and predicted class (column).
      settings: names of the objective's settings. Warnings suggest no others: a tagger has no `label_smoothing`.
    """

    classes: tuple[str, ...]
    confusion_CC: np.ndarray
    settings: frozenset[str] = frozenset()

    @classmethod
    def of(cls, classes: Sequence[str], labels: Sequence[str], guesses: Sequence[str]) -> "ClassReport":
        """Count (label, prediction) pairs."""
        number = {name: index for index, name in enumerate(classes)}
        confusion_CC = np.zeros((len(classes), len(classes)), np.int64)
        # `confusion[rows, columns] += 1` would count equal pairs only once.
        np.add.at(confusion_CC, ([number[name] for name in labels], [number[name] for name in guesses]), 1)
        return cls(tuple(classes), confusion_CC)

    @property
    def scores(self) -> dict[str, dict[str, Any]]:
        """Scores by class, see `scores_by_class`."""
        return scores_by_class(self.classes, self.confusion_CC)

    def warnings(self, loss: float | None) -> list[str]:
        """Return a line for each sign of underfitting, overfitting or overconfidence.

        Args:
          loss: mean cross-entropy over these classes in nats; None if the task has another loss.
        """
        lines, count, chance = [], len(self.classes), math.log(len(self.classes))
        if count == 1:
            return lines
        right, most = np.trace(self.confusion_CC), self.confusion_CC.sum(axis=1).max()
        if loss is not None and loss > _UNTRAINED * chance:
            is_above = loss > _OVERCONFIDENT * chance
            place = f"{'above' if is_above else 'near'} ln {count} = {chance:.2f}, that of equal probabilities"
            if not is_above:
                reason = ": the model has hardly learned; raise stages.0.epochs or optimizer.learning_rate"
            elif right > most:  # accuracy above the majority class: right answers, but badly calibrated
                remedy = "predict corrects them by objective.temperature"
                reason = (
                    f", although {right:,} of {self.confusion_CC.sum():,} answers are right: the probabilities are too "
                    f"sure; {remedy if 'temperature' in self.settings else 'lower stages.0.epochs'}"
                )
            else:
                reason = (
                    ": the model is sure of wrong answers, as after too many epochs; lower stages.0.epochs and "
                    "stages.0.min_steps or optimizer.learning_rate"
                )
            lines.append(f"the loss of {loss:.2f} is {place}{reason}")
        predicted = np.flatnonzero(self.confusion_CC.sum(axis=0))
        if len(predicted) == 1:
            balanced = ", or set objective.balanced=True if most examples have this class"
            lines.append(
                f"every prediction is {self.classes[predicted[0]]!r}; raise stages.0.epochs or "
                f"optimizer.learning_rate{balanced if 'balanced' in self.settings else ''}"
            )
        return lines

    def csv(self) -> str:
        """Return the confusion matrix as CSV, with true classes as rows and predictions as columns."""
        rows = ([name, *row] for name, row in zip(self.classes, self.confusion_CC.tolist()))
        return csv_text([["true class", *self.classes], *rows])

    def figure(self) -> "Figure":
        """Draw the confusion matrix; colors are shares of the true class."""
        # matplotlib takes long to import, so only functions that draw import it.
        from matplotlib.figure import Figure

        count = len(self.classes)
        side = min(24.0, 3.0 + 0.3 * count)
        figure = Figure(figsize=(side, side), layout="constrained")
        axes = figure.subplots()
        shares_CC = ratio(self.confusion_CC, self.confusion_CC.sum(axis=1, keepdims=True))
        axes.imshow(shares_CC, vmin=0.0, vmax=1.0, cmap="Blues")
        axes.set_xticks(range(count), self.classes, rotation=90)
        axes.set_yticks(range(count), self.classes)
        axes.set(xlabel="prediction", ylabel="true class")
        if count <= _MOST_NUMBERS:
            for (row, column), number in np.ndenumerate(self.confusion_CC):
                if number:
                    color = "white" if shares_CC[row, column] > 0.5 else "black"
                    axes.text(column, row, f"{number:,}", ha="center", va="center", color=color, fontsize=8)
        return figure


def table_of(scores: Mapping[str, Mapping[str, Any]]) -> str:
    """Format `ClassReport.scores` as a table: lowest F1 first, averages last."""
    rows = [{"name": name, **row} for name, row in scores.items()]
    # The last two entries are the averages.
    rows, means = sorted(rows[:-2], key=lambda row: row["f1"]), rows[-2:]
    columns, title = ("class", "precision", "recall", "f1", "support"), "classes by F1, the lowest first"
    table = Table(*columns, title=title, justify="right", pad_edge=False)
    table.add_column("most often taken for", justify="left")
    for row in [*rows[:_SHOWN], *means]:
        numbers = [f"{row[name]:.3f}" for name in ("precision", "recall", "f1")]
        taken_for = "".join(f"{other} ({count:,})" for other, count in row.get("taken_for", {}).items())
        table.add_row(row["name"], *numbers, f"{row['support']:,}", taken_for)
    if len(rows) > _SHOWN:
        table.caption = f"{len(rows) - _SHOWN} classes with a higher F1 are not shown"
    # Fixed width: the same text goes to files and to terminals.
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    return console.file.getvalue()


class ScoredSet(NamedTuple):
    """A task's predictions on a held-out set, with their report.

    Attributes:
      name: held-out set, qualified by task.
      task: the task.
      predictions: records with predictions.
      report: scores by class.
      loss: mean loss in nats; None if the task has none.
    """

    name: str
    task: Task
    predictions: list[Record]
    report: ClassReport
    loss: float | None


def scored_sets(config: Config, evaluation: Evaluation) -> list[ScoredSet]:
    """Return the held-out sets of all tasks with classes."""
    several, sets = len(config.tasks) > 1, []
    for heldout, part in evaluation.by_set.items():
        for name, task in config.tasks.items():
            # Other sets belong to one task; their names start with it if there are several tasks.
            is_of_all = heldout == HELDOUT
            if several and not is_of_all and not heldout.startswith(f"{name}/"):
                continue
            # The main set merges the predictions of all tasks, so each record names its own.
            own = [record for record in part.predictions if not (several and is_of_all) or record["task"] == name]
            if report := report_of(task, own):
                loss = f"{unwrapped(task.objective).term}_loss"
                loss = part.metrics.get(config.qualified(name, loss) if is_of_all else loss)
                qualified = config.qualified(name, heldout) if is_of_all else heldout
                sets.append(ScoredSet(qualified, task, own, report, loss))
    return sets


def report_of(task: Task, predictions: Sequence[Record]) -> ClassReport | None:
    """Return the report on a task's predictions; None if they are not classes of labeled records.

    In tagged sentences every word counts as an example.
    """
    # The key of the label in a record depends on the example format; other formats have no single class per example.
    classes = task.objective.classes
    label = {"labeled_text": getattr(task.examples, "label", ""), "tagged": "tags"}.get(task.examples.kind, "")
    if not classes or not label or not all({label, "prediction"} <= record.keys() for record in predictions):
        return None
    if task.examples.kind == "tagged":
        labels = [tag for record in predictions for tag in record["tags"]]
        guesses = [tag for record in predictions for tag in record["prediction"]]
    else:
        labels = [label_names.class_of(record[label]) for record in predictions]
        guesses = [record["prediction"] for record in predictions]
    settings = frozenset(field.name for field in dataclasses.fields(unwrapped(task.objective)))
    return dataclasses.replace(ClassReport.of(classes, labels, guesses), settings=settings) if labels else None


def has_probabilities(task: Task, predictions: Sequence[Record]) -> bool:
    """Return whether predictions are classes of texts with probabilities, which the labels can be checked by."""
    return task.examples.kind == "labeled_text" and all("probabilities" in record for record in predictions)


def accepted_lines(name: str, predictions: Sequence[Record]) -> list[str]:
    """Return how many predictions the threshold accepts, with a warning if they are few; empty without a threshold."""
    if not all("accepted" in record for record in predictions):
        return []
    accepted = sum(record["accepted"] for record in predictions)
    lines = [f"accepted  {accepted:,} of {len(predictions):,} records of {name} are above objective.threshold"]
    if accepted < _FEWEST:
        lines.append(
            f"warning: {name}: fewer than {_FEWEST} accepted records do not show the precision of the "
            "threshold on new texts; hold out more records, or lower objective.precision"
        )
    return lines


def write(files: Workdir, config: Config, evaluation: Evaluation) -> list[str]:
    """Write the reports for all tasks and held-out sets to the predictions folder.

    Returns:
      Lines to print: warnings, and the files that were written.
    """
    lines = []
    for name, task, predictions, report, loss in scored_sets(config, evaluation):
        stem = name.replace("/", "-")
        write_report(files.predictions, stem, report)
        lines += [f"warning: {stem}: {line}" for line in report.warnings(loss)]
        lines.append(f"classes   {files.predictions / stem}-classes.txt, -confusion.csv and -confusion.png")
        if has_probabilities(task, predictions):
            count = write_suspects(files.predictions, stem, task, predictions)
            lines += accepted_lines(stem, predictions)
            if len(predictions) < _FEWEST and not task.examples.folds:  # the folds together have all records
                lines.append(
                    f"warning: {stem}: {len(predictions):,} records are too few for scores, a temperature or suspects "
                    f"that hold on new texts; hold out {_FEWEST} or more, or set examples.folds=5"
                )
            lines.append(f"labels    {count:,} are probably wrong: {files.predictions / stem}-suspects.csv")
    return lines


def write_report(folder: epath.Path, stem: str, report: ClassReport) -> None:
    """Write the scores by class and the confusion matrix to the files of a folder whose names start with `stem`."""
    storage.write_text(folder / f"{stem}-classes.txt", table_of(report.scores))
    storage.write_text(folder / f"{stem}-confusion.csv", report.csv())
    curves.save(report.figure(), folder / f"{stem}-confusion.png")


def _with_line(record: Record) -> Record:
    """Return a record of a file with the number of its line in place of its location."""
    if not record.get(WHERE):
        return without_location(record)
    return {"line" if "line" not in record else "line of the file": line_of(record)} | without_location(record)


def write_suspects(folder: epath.Path, stem: str, task: Task, predictions: Sequence[Record]) -> int:
    """Write the labels that are probably wrong as `<stem>-suspects.csv`, and return their number."""
    suspects = [_with_line(record) for record in labeled_block.suspect_records(predictions, task.examples.label)]
    columns = list(dict.fromkeys(name for record in suspects for name in record)) or ["suggested", "label_probability"]
    rows = ([record.get(name, "") for name in columns] for record in suspects)
    storage.write_text(folder / f"{stem}-suspects.csv", csv_text([columns, *rows]))
    return len(suspects)
