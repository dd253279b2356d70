"""python -m bertjax evaluate MODEL.onnx: scores on a labeled file, without JAX."""

import dataclasses
from typing import Any

import numpy as np

from bertjax.data.labeled import remedies
from bertjax.data.labeled.base import Record
from bertjax.data.labeled.label_sets import LabelSets
from bertjax.data.labeled.renamed import with_names_of
from bertjax.data.labeled.texts import LabeledText
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError, json_text, printable, say
from bertjax.serving.description import CLASSIFICATION, EMBEDDING, Description
from bertjax.serving.model import OnnxModel
from bertjax.serving.predict import texts_of
from bertjax.serving.scores import baselines_of, scores_by_class, scores_of

_FORMATS: dict[str, type[LabeledText]] = {"labeled_text": LabeledText, "label_sets": LabelSets}


def read(description: Description, path: str) -> tuple[list[Record], np.ndarray]:
    """Return the records of a labeled file, and their labels as `scores.scores_of` takes them.

    Raises:
      UserError: the file cannot be read, or has a label that the model does not know.
    """
    examples = _format(description)
    with remedies.of_command(examples.columns_of((*command_line.TEXT_COLUMNS, "label"))):
        records = examples.read(path)
        if description.labels:
            records = examples.without_missing(records, path, description.labels)
    if description.labels:
        records = with_names_of(description.labels, records, examples, path)
    return records, examples.label_numbers(records, description.labels)


def run(model: OnnxModel, path: str, description: Description | None = None, per_class: bool = False) -> dict[str, Any]:
    """Score a model on a labeled file.

    Args:
      model: the model.
      path: a .csv, .tsv, .jsonl or .json file, as for `bertjax evaluate`.
      description: the model's description with the columns of the file; None for its own columns.
      per_class: whether to return scores by class as well.

    Returns:
      {`eval`: {metric: value}, `baseline`: {metric: value}, `records`: number of records, `cut`: number of texts that
      were cut}, and on request `classes`: {`heldout`: see `scores.scores_by_class`}, nested as for an export.

    Raises:
      UserError: the file cannot be read, or the model does not predict labels.
    """
    model.check_task()
    description = description or model.description
    if description.task == EMBEDDING:
        raise UserError(f"{model.path} computes embeddings, which a labeled file does not score; name a classifier")
    if per_class and description.task != CLASSIFICATION:
        raise UserError(
            f"--per-class has no effect on {model.path}, which does not predict one class for each record; leave it out"
        )
    records, labels = read(description, path)
    rows = model.rows(texts_of(description, records))
    values = model.values(rows)
    figures = {
        "eval": scores_of(description, values, labels),
        "baseline": baselines_of(description, labels),
        "records": len(records),
        "cut": sum(row.is_cut for row in rows),
    }
    return figures | ({"classes": {"heldout": scores_by_class(description, values, labels)}} if per_class else {})


def _format(description: Description) -> LabeledText:
    settings: dict[str, Any] = dict(description.examples)
    kind = settings.pop("kind", "labeled_text")
    if kind not in _FORMATS:
        raise UserError(f"the model was trained on examples.kind={kind!r}, whose files only its export reads")
    names = {field.name for field in dataclasses.fields(_FORMATS[kind]) if field.init}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    return _FORMATS[kind](**{name: value for name, value in values.items() if name in names})


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
    parser = command_line.ArgumentParser(
        "evaluate",
        description="Score an ONNX file of bertjax on a labeled file, without JAX.",
        epilog="examples:\n"
        "  python -m bertjax evaluate reviews.onnx --corpus=test.csv\n"
        "  python -m bertjax evaluate reviews.onnx --corpus=other.csv --text=comment --label=stars --json\n",
    )
    parser.add_argument("model", help="a file of bertjax convert --to=MODEL.onnx")
    parser.add_argument("--corpus", default="", metavar="FILE", help="a labeled .csv, .tsv, .jsonl or .json file")
    parser.add_argument("--threads", type=int, default=0, help="threads to compute with (default: one on each core)")
    parser.add_argument("--per-class", action="store_true", help="also print precision, recall and F1 of each class")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    command_line.add_column_flags(parser, "--corpus", (*command_line.TEXT_COLUMNS, "label"))
    args = parser.parse_args(argv)
    columns = command_line.columns_of(args)
    if not args.corpus:
        raise UserError("an ONNX file names no data to score on; add --corpus=FILE, a labeled file")
    model = OnnxModel(args.model, args.threads)
    figures = run(model, args.corpus, model.description.with_columns(columns), args.per_class)
    say(json_text(figures, indent=2) if args.json else _text(figures, args.corpus))
    return 0
