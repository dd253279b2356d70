"""Scores of `benchmarks/finetuning.py`, computed by the same code from the predictions of both arms."""

from collections import Counter
from typing import Any

from benchmarks.finetuning_cell import Cell
from bertjax.objectives.finetuning import entities, squad_metrics
from bertjax.runtime.errors import RunFailed


def scores_of(cell: Cell, pairs: list[tuple[Any, Any]]) -> dict[str, float]:
    """Return metrics as shares, from (label, prediction) of every held-out record in any order.

    Raises:
      RunFailed: the labels are not those of the held-out records.
    """
    labels, predictions = (list(column) for column in zip(*pairs))
    same = Counter(map(str, labels)) == Counter(str(record[cell.label]) for record in cell.heldout)
    if not same or (cell.kind == "tagged" and list(map(len, labels)) != list(map(len, predictions))):
        raise RunFailed(f"the predictions for {cell.task} are not those of its {len(cell.heldout)} held-out records")
    if cell.kind == "tagged":
        return _entities(labels, predictions)
    if cell.kind == "questions":
        return _answers(labels, predictions)
    return _classes(cell, labels, predictions) if cell.classes else _correlations(labels, predictions)


def _entities(labels: list[list[str]], predictions: list[list[str]]) -> dict[str, float]:
    """Return scores of whole entities over all classes, as `conlleval` counts; `token_accuracy` counts words."""
    correct = [tag == guess for tags, guesses in zip(labels, predictions) for tag, guess in zip(tags, guesses)]
    return {**entities.scores(labels, predictions), "token_accuracy": sum(correct) / len(correct)}


def _answers(labels: list[list[dict]], predictions: list[str]) -> dict[str, float]:
    golds = [[answer["text"] for answer in answers_of] for answers_of in labels]
    return {
        name: sum(map(score, predictions, golds)) / len(golds)
        for name, score in (("exact_match", squad_metrics.exact_match), ("f1", squad_metrics.f1))
    }


def _correlations(labels: list[str], predictions: list[float]) -> dict[str, float]:
    from scipy import stats

    results = (function([float(x) for x in labels], predictions) for function in (stats.pearsonr, stats.spearmanr))
    return dict(zip(("pearson", "spearman"), (float(result.statistic) for result in results)))


def _classes(cell: Cell, labels: list[str], predictions: list[str]) -> dict[str, float]:
    from sklearn import metrics

    average = {"pos_label": cell.classes[1]} if len(cell.classes) == 2 else {"average": "macro"}
    return {
        "accuracy": float(metrics.accuracy_score(labels, predictions)),
        "f1": float(metrics.f1_score(labels, predictions, zero_division=0.0, **average)),
        "matthews": float(metrics.matthews_corrcoef(labels, predictions)),
    }


def majority(cell: Cell) -> dict[str, float]:
    """Return metrics of always guessing the training file's most frequent class; empty if labels are not classes."""
    if not cell.classes:
        return {}
    [(guess, _)] = cell.config.task.examples.class_counts(cell.train).most_common(1)
    guesses = [[guess] * len(record["words"]) if cell.kind == "tagged" else guess for record in cell.heldout]
    return scores_of(cell, [(record[cell.label], guess) for record, guess in zip(cell.heldout, guesses)])
