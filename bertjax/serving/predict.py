"""Use an ONNX file of bertjax: classes, numbers, tags or embeddings of texts, without JAX.

examples:
  python -m bertjax predict reviews.onnx "A charming film."
  python -m bertjax predict reviews.onnx --file=reviews.csv --out=answers.jsonl
"""

import functools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from bertjax.data.labeled.base import LabeledFormat, Record
from bertjax.inference.records import (
    ARRAY,
    FORMS,
    check_top,
    read_inputs,
    readable_text,
    requested,
    with_answer,
    with_best,
    with_tags,
    write,
)
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError
from bertjax.serving.description import CLASSIFICATION, EMBEDDING, MULTI_LABEL
from bertjax.serving.model import Encoded, OnnxModel, Text

# Number of records whose outputs are in memory at the same time.
_PART = 1 << 13
# Number of classes to print on a terminal without --top.
_SHOWN = 3


def texts_of(examples: LabeledFormat, records: list[Record]) -> list[Text]:
    """Return what the model reads of each record: a text, a pair of texts, or the words of a sentence."""
    fields, words = examples.inputs, examples.list_input
    if words:
        return [own if isinstance(own := record.get(words), list) else record[fields[0]] for record in records]
    return [record[fields[0]] if len(fields) == 1 else tuple(record[name] for name in fields) for record in records]


def predictions(
    model: OnnxModel, records: list[Record], parts: list[Encoded], fields: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield each record's fields with its answer, in order, as `bertjax predict` of the export does."""
    rest = iter(records)
    for part in parts:
        for answer in model.answers_to(part):
            yield with_answer(next(rest), answer, fields)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser("predict", __doc__)
    parser.add_argument("model", help="a file of bertjax convert --to=MODEL.onnx")
    parser.add_argument("texts", nargs="*", default=[], metavar="TEXT", help="sentences; else --file or stdin is read")
    parser.add_flags(
        {
            "--file=F": "a file with one sentence per line, or a .csv, .tsv, .jsonl or .json",
            "--out=F": "file to write instead of stdout: .jsonl, .json, .csv, or .npy for embeddings",
        }
    )
    parser.add_flags({"--top=K": "number of classes, most probable first (default: all)"}, type=command_line.positive)
    parser.add_flags(command_line.THRESHOLD, type=float)
    parser.add_flags({"--json": "print JSON also on a terminal"}, action="store_true")
    parser.add_flags({"--threads": "threads to compute with (default: one on each core)"}, type=int, default=0)
    command_line.add_column_flags(parser, "--file", command_line.INPUT_COLUMNS)
    args = parser.parse_intermixed_args(argv)  # sentences may follow flags
    check_top(args.top, args.out)
    model = OnnxModel(args.model, args.threads, threshold=args.threshold)
    model.check_task()
    examples = model.description.with_columns(command_line.columns_of(args))
    labels = model.description.labels
    if args.top and model.description.task not in (CLASSIFICATION, MULTI_LABEL):
        raise UserError(f"--top={args.top} has no effect on a model without probabilities of classes; leave it out")
    if args.out.endswith(ARRAY) and model.description.task != EMBEDDING:
        raise UserError(f"--out={args.out} can hold only embeddings; name a .jsonl or .csv file")
    fields = examples.inputs
    records = requested(args.texts, args.file, fields, functools.partial(read_inputs, examples, classes=labels))
    # All records first, so that a bad one is found before anything is computed.
    texts = texts_of(examples, records)
    parts = [model.encode(texts[first : first + _PART]) for first in range(0, len(texts), _PART)]
    is_readable = model.description.task != EMBEDDING and not args.json and not args.out and sys.stdout.isatty()
    answers = predictions(model, records, parts, (*fields, examples.list_input))
    if args.top:
        answers = (with_best(answer, args.top) for answer in answers)
    as_column = bool(args.file and examples.list_input) and not args.json and not args.out.endswith(FORMS)
    lines = with_tags(examples, args.file, answers, labels) if as_column else None
    if lines is None and is_readable:
        lines = (readable_text(answer, fields, args.top or _SHOWN) for answer in answers)
    notes = sum(map(Counter, (part.notes for part in parts)), Counter())
    write(args.out, records, answers, (model.values(part.rows) for part in parts), notes, lines)
    return 0
