"""Score an ONNX file of bertjax on a labeled file, without JAX.

The names and values are those of `bertjax evaluate`, which takes them from scikit-learn.

examples:
  python -m bertjax evaluate reviews.onnx --corpus=test.csv
  python -m bertjax evaluate reviews.onnx --corpus=other.csv --text=comment --label=stars --json
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from bertjax.data.labeled.base import Record
from bertjax.data.labeled.texts import LabeledText
from bertjax.inference.records import read_labeled
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError, json_text, printable, say
from bertjax.serving.description import CLASSIFICATION, EMBEDDING, KINDS, MULTI_LABEL, TAGGING, Description
from bertjax.serving.model import OnnxModel
from bertjax.serving.predict import texts_of

Columns = Mapping[str, str | int]


def scores_of(description: Description, values: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return {metric: value}.

    Args:
      description: the model.
      values: see `bertjax.serving.model.values_of`.
      labels: class numbers int [M], multi-hot sets [M, C], or numbers [M].
    """
    if description.task == CLASSIFICATION:
        guesses_M = values.argmax(axis=-1)
        scores = _of_classes(labels, guesses_M, len(description.labels))
        return scores | _of_accepted(values.max(axis=-1), guesses_M == labels, description.threshold)
    if description.task == MULTI_LABEL:
        threshold = 0.5 if description.threshold is None else description.threshold
        return _of_sets(labels > 0, values > threshold)
    return _of_numbers(labels, values)


def scores_by_class(description: Description, values: np.ndarray, labels_M: np.ndarray) -> dict[str, dict[str, float]]:
    """Return {class: {`precision`, `recall`, `f1`, `support`: number of records}}; a ratio 0 / 0 is 0.

    Args:
      description: a classifier.
      values: probabilities [M, C].
      labels_M: class numbers.
    """
    confusion_CC = _confusion(labels_M, values.argmax(axis=-1), len(description.labels))
    right_C, of_label_C, of_guess_C = confusion_CC.diagonal(), confusion_CC.sum(axis=1), confusion_CC.sum(axis=0)
    columns = {
        "precision": right_C / np.maximum(of_guess_C, 1),
        "recall": right_C / np.maximum(of_label_C, 1),
        "f1": _f1(right_C, of_label_C + of_guess_C),
    }
    return {
        label: {name: float(column_C[number]) for name, column_C in columns.items()}
        | {"support": int(of_label_C[number])}
        for number, label in enumerate(description.labels)
    }


def _confusion(labels_M: np.ndarray, guesses_M: np.ndarray, classes: int) -> np.ndarray:
    """Return the number of records by label (row) and answer (column), float64 [C, C]."""
    return np.bincount(labels_M * classes + guesses_M, minlength=classes**2).reshape(classes, classes).astype(float)


def _of_classes(labels_M: np.ndarray, guesses_M: np.ndarray, classes: int) -> dict[str, float]:
    confusion_CC = _confusion(labels_M, guesses_M, classes)
    f1_C = _f1(confusion_CC.diagonal(), confusion_CC.sum(axis=0) + confusion_CC.sum(axis=1))
    return {
        "accuracy": float(confusion_CC.trace() / len(labels_M)),
        # With two classes, that of the second one, as in GLUE.
        "f1": float(f1_C[1] if classes == 2 else f1_C.mean()),
        "matthews": _matthews(confusion_CC),
    }


def _of_accepted(confidences_M: np.ndarray, is_right_M: np.ndarray, threshold: float | None) -> dict[str, float]:
    """Return the share of accepted answers, and the share of right ones among them; nothing without a threshold."""
    if threshold is None:
        return {}
    is_accepted_M = confidences_M > threshold
    precision = {"precision": float(is_right_M[is_accepted_M].mean())} if is_accepted_M.any() else {}
    return {"coverage": float(is_accepted_M.mean())} | precision


def _matthews(confusion_CC: np.ndarray) -> float:
    """Return Matthews' correlation for several classes (Gorodkin, 2004); 0 if labels or answers are of one class."""
    total, right = confusion_CC.sum(), confusion_CC.trace()
    of_label_C, of_guess_C = confusion_CC.sum(axis=1), confusion_CC.sum(axis=0)
    spread = (total**2 - of_guess_C @ of_guess_C) * (total**2 - of_label_C @ of_label_C)
    return float((right * total - of_label_C @ of_guess_C) / np.sqrt(spread)) if spread > 0 else 0.0


def _of_sets(labels_MC: np.ndarray, guesses_MC: np.ndarray) -> dict[str, float]:
    both_C, either_C = (labels_MC & guesses_MC).sum(axis=0), labels_MC.sum(axis=0) + guesses_MC.sum(axis=0)
    return {
        "f1": float(_f1(both_C.sum(), either_C.sum())),
        "exact_match": float((labels_MC == guesses_MC).all(axis=-1).mean()),
        "macro_f1": float(_f1(both_C, either_C).mean()),
    }


def _f1(both: np.ndarray, either: np.ndarray) -> np.ndarray:
    """Return 2 TP / (predicted + actual), 0 if there are neither."""
    return np.where(either > 0, 2.0 * both / np.maximum(either, 1), 0.0)


def _of_numbers(labels_M: np.ndarray, numbers_M: np.ndarray) -> dict[str, float]:
    # The correlation with a constant is not defined.
    if np.ptp(labels_M) == 0 or np.ptp(numbers_M) == 0:
        return {"pearson": 0.0, "spearman": 0.0}
    return {
        "pearson": float(np.corrcoef(labels_M, numbers_M)[0, 1]),
        "spearman": float(np.corrcoef(_ranks(labels_M), _ranks(numbers_M))[0, 1]),
    }


def _ranks(values_M: np.ndarray) -> np.ndarray:
    """Return ranks from 0; equal values share the mean of their ranks."""
    _, places_M, counts = np.unique(values_M, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1
    return (last - (counts - 1) / 2)[places_M]


def read(description: Description, path: str, columns: Columns = {}) -> tuple[list[Record], np.ndarray]:  # noqa: B006
    """Return the records of a labeled file, and their labels as `scores_of` takes them.

    Args:
      description: the model.
      path: the file.
      columns: {setting of the examples: column in the file}, if they differ from those of the training file.

    Raises:
      UserError: the file cannot be read, or has a label that the model does not know.
    """
    kind = description.examples.get("kind", "labeled_text")
    if kind not in KINDS or description.task == TAGGING:
        remedy = "score that: bertjax evaluate RUN"
        raise UserError(
            f"the model was trained on examples.kind={kind!r}, on whose files only its export is scored; {remedy}"
        )
    examples = cast(LabeledText, description.with_columns(columns))
    records = read_labeled(examples, path, description.labels)
    return records, examples.label_numbers(records, description.labels)


def run(model: OnnxModel, path: str, columns: Columns = {}, per_class: bool = False) -> dict[str, Any]:  # noqa: B006
    """Score a model on a labeled file.

    Args:
      model: the model.
      path: a .csv, .tsv, .jsonl or .json file, as for `bertjax evaluate`.
      columns: see `read`.
      per_class: whether to return scores by class as well.

    Returns:
      {`eval`: {metric: value}, `baseline`: {metric: value}, `records`: number of records, `cut`: number of texts that
      were cut}, and on request `classes`: {`heldout`: see `scores.scores_by_class`}, nested as for an export.

    Raises:
      UserError: the file cannot be read, or the model does not predict labels.
    """
    model.check_task()
    description = model.description
    if description.task == EMBEDDING:
        raise UserError(f"{model.path} computes embeddings, which a labeled file does not score; name a classifier")
    is_class = description.task == CLASSIFICATION
    if per_class and not is_class:
        raise UserError(
            f"--per-class has no effect on {model.path}, which does not predict one class for each record; leave it out"
        )
    records, labels = read(description, path, columns)
    rows = model.rows(texts_of(description.with_columns(columns), records))
    values = model.values(rows)
    figures = {
        "eval": scores_of(description, values, labels),
        "baseline": {"majority_accuracy": float(np.bincount(labels).max() / len(labels))} if is_class else {},
        "records": len(records),
        "cut": sum(row.is_cut for row in rows),
    }
    return figures | ({"classes": {"heldout": scores_by_class(description, values, labels)}} if per_class else {})


def _text(figures: dict[str, Any], path: str) -> str:
    lines = [f"{name:<12}  {value:.4f}" for name, value in figures["eval"].items()]
    lines += [f"{name}  {value:.4f}" for name, value in figures["baseline"].items()]
    cut = f", {figures['cut']:,} of them cut" if figures["cut"] else ""
    lines.append(f"{figures['records']:,} records of {printable(path)}{cut}")
    by_class = figures.get("classes", {}).get("heldout", {})
    if by_class:
        lines += ["", f"{'precision':>9}  {'recall':>6}  {'f1':>6}  {'support':>7}  class"]
    for label, of in sorted(by_class.items(), key=lambda pair: pair[1]["f1"]):
        numbers = f"{of['precision']:>9.3f}  {of['recall']:>6.3f}  {of['f1']:>6.3f}  {of['support']:>7,}"
        lines.append(f"{numbers}  {printable(label)}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser("evaluate", __doc__)
    parser.add_argument("model", help="a file of bertjax convert --to=MODEL.onnx")
    parser.add_flags({"--corpus=FILE": "a labeled .csv, .tsv, .jsonl or .json file"})
    parser.add_flags({"--threads": "threads to compute with (default: one on each core)"}, type=int, default=0)
    parser.add_flags(command_line.FIGURES, action="store_true")
    command_line.add_column_flags(parser, "--corpus", (*command_line.TEXT_COLUMNS, "label"))
    args = parser.parse_args(argv)
    columns = command_line.columns_of(args)
    if not args.corpus:
        raise UserError("an ONNX file names no data to score on; add --corpus=FILE, a labeled file")
    model = OnnxModel(args.model, args.threads)
    figures = run(model, args.corpus, columns, args.per_class)
    say(json_text(figures, indent=2) if args.json else _text(figures, args.corpus))
    return 0
