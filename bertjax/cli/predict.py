"""Use a model: predict what it was fine-tuned for, fill [MASK], or turn texts into vectors.

`bertjax.predictor` does the same in Python.

--do chooses what to compute; the default is the first of these that the model can do:

task     what a fine-tuned model was trained to predict, a class or a number for example; records need no label
fill     the most probable pieces of the vocabulary for every [MASK], with their probabilities; "filled" is the
         text with the best piece for each
embed    a vector for each text: the mean of its last hidden states, [CLS] and [SEP] included; --layers chooses
         others, and --per-token gives a vector for each token

examples:
  fill the masks of a sentence:
      python -m bertjax predict runs/tiny/export "The [MASK] was old, and so was the [MASK]."
  the ten best pieces for each mask, for all lines of a file, from a certain checkpoint:
      python -m bertjax predict runs/tiny@750 --file=sentences.txt --top=10 --out=filled.jsonl
  the three most probable classes of a sentence:
      python -m bertjax predict runs/mine/export "My card has not come yet." --top=3
  the mean of three seeds of a fine-tuning:
      python -m bertjax predict runs/RTE/seed=0 --with=runs/RTE/seed=1 --with=runs/RTE/seed=2 --file=pairs.jsonl
  only the best sentence, from a stream:
      echo "Long live the [MASK]!" | python -m bertjax predict runs/tiny | jq -r .filled
  vectors of length 1, as a numpy array of shape [sentences, width]:
      python -m bertjax predict runs/tiny/export --do=embed --normalize --file=sentences.txt --out=vectors.npy

A tagger also reads files with a word in each line, and CoNLL-U. Its tags are written as a column of the same file,
unless --json or an --out that ends in .jsonl or .csv asks for another form.

On a terminal, predictions are printed as text with percentages, embeddings as JSON. In a pipe, in a file (--out) and
with --json, each record becomes one line of JSON, in the order of the input, and keeps its own fields. A --out that
ends in .csv has columns: these fields, the prediction and its probability, lists as JSON.
An ONNX file computes its task, or embeds, without JAX.
A text that is longer than the model can read is cut at its end; the number of cut texts is printed at the end.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

from bertjax.inference.base import Model, Pipeline, Request, bar
from bertjax.inference.onnx import OnnxModel, is_onnx
from bertjax.inference.records import ARRAY, FORMS, check_top, readable_text, requested, write
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError, say

# Number of classes to print on a terminal without --top.
_SHOWN = 3
# Flags that set an option of a pipeline, and those that only an export or a run has.
_OPTIONS = ("top", "normalize", "layers", "per_token", "threshold")
_OF_RUNS = ("do", "others", "task", "normalize", "layers", "per_token", "trust_code", "platform")


def run(predictor: Model, request: Request, out: str = "", readable: int = 0, source: str = "") -> None:
    """Write the predictions to stdout or a file; progress and the number of cut texts go to stderr.

    Args:
      predictor: the model.
      request: encoded records, from `predictor.request`.
      out: output file, JSON lines, .csv, or .npy for embeddings; stdout if empty. It appears when it is complete.
      readable: number of classes to print per record as readable text; 0 for JSON.
      source: input file, if predictions are to be written into a copy of it as a column.

    Raises:
      UserError: the file cannot be written, or its name has another suffix.
    """
    predictions = _with_bar(predictor.predictions, request)
    pipeline = request.pipeline
    vectors = (part[pipeline.array] for part in _with_bar(predictor.outputs, request))
    lines = pipeline.with_answers(source, predictions) if source else None
    if lines is None and readable:
        lines = (readable_text(prediction, pipeline.fields, readable) for prediction in predictions)
    write(out, request.records, predictions, vectors, request.notes, lines)


def _with_bar(compute: Callable[..., Iterator[Any]], request: Request) -> Iterator[Any]:
    with bar(request.tokens) as progress:  # it ends before anything else is printed
        yield from compute(request, progress.update)


def _layers(text: str, last: int) -> tuple[int, ...]:
    """Parse --layers into layer numbers, in the given order.

    Args:
      text: comma-separated numbers, or `last4` for the last four.
      last: number of the last layer.
    """
    count = text.removeprefix("last")
    if text.startswith("last") and count.isdecimal() and int(count) > 0:
        return tuple(range(last - int(count) + 1, last + 1))
    if not all(part.isdecimal() for part in text.split(",")):
        raise UserError(
            f"--layers={text} does not name layers; write --layers=8, --layers=9,10,11,12 or --layers=last4"
        )
    return tuple(map(int, text.split(",")))


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser("predict", __doc__)
    parser.add_argument(
        "model", help="an export folder, a workdir (its newest checkpoint), WORKDIR@STEP, or an ONNX file"
    )
    parser.add_argument(
        "texts",
        nargs="*",
        default=[],  # otherwise argparse reports them as required
        metavar="TEXT",
        help="sentences; without any, they are read from --file or stdin",
    )
    parser.add_flags(
        {
            "--file=F": "a file with one sentence per line, or a .csv, .tsv, .jsonl or .json with the field 'text' "
            "(or the fields of the task); also .gz, .zst or .xz",
            "--out=F": "file to write instead of stdout: .jsonl, .json, .csv, or .npy for embeddings",
            "--task=NAME": "the task to predict, if the model was fine-tuned on several",
            "--layers=N": "with embed: layers to concatenate, as in 8, 9,10,11,12 or last4; 0 is the embeddings "
            "(default: the last)",
        }
    )
    choices = ("task", "fill", "embed")
    parser.add_flags({"--do": "what to compute (default: what the model was trained for)"}, choices=choices)
    parser.add_flags(
        {
            "--with=MODEL": "a further model of the same fine-tuning, such as another seed; predictions are averaged. "
            "May be repeated"
        },
        action="append",
        default=[],
        dest="others",
    )
    parser.add_flags(
        {
            "--top=K": "number of pieces for each mask (default: 5), or of classes",
            "--threads": "for an ONNX file: threads to compute with (default: one on each core)",
        },
        type=int,
    )
    parser.add_flags(command_line.THRESHOLD, type=float)
    parser.add_flags(
        {
            "--json": "print JSON also on a terminal",
            "--normalize": "with embed: scale vectors to length 1",
            "--per-token": "with embed: a vector for each token, as JSON",
        },
        action="store_true",
    )
    command_line.add_column_flags(parser, "--file", command_line.INPUT_COLUMNS)
    command_line.add_trust_flag(parser)
    command_line.add_platform_flag(parser)
    args = parser.parse_intermixed_args(argv)  # sentences may follow flags
    options = {
        name: value for name in _OPTIONS if (value := getattr(args, name)) not in (None, "") and value is not False
    }
    if columns := command_line.columns_of(args):
        options["columns"] = tuple(columns.items())
    predictor, pipeline = (_of_file if is_onnx(args.model) else _of_run)(args, options)
    if args.out.endswith(ARRAY) and not pipeline.array:
        remedy = "" if is_onnx(args.model) else "add --do=embed without --per-token, or "
        raise UserError(f"--out={args.out} can hold only embeddings, one for each text; {remedy}name a .jsonl file")
    say("".join(f"{line}\n" for line in pipeline.remarks), end="", file=sys.stderr)
    request = predictor.request(pipeline, requested(args.texts, args.file, pipeline.fields, pipeline.read))
    is_readable = pipeline.is_readable and not args.json and not args.out and sys.stdout.isatty()
    source = "" if args.json or args.out.endswith(FORMS) else args.file
    run(predictor, request, args.out, (args.top or _SHOWN) if is_readable else 0, source)
    return 0


def _of_file(args: argparse.Namespace, options: dict[str, Any]) -> tuple[Model, Pipeline]:
    """Open an ONNX file, without JAX."""
    if stray := [name for name in _OF_RUNS if getattr(args, name)]:
        flag = "with" if stray[0] == "others" else stray[0].replace("_", "-")
        raise UserError(f"--{flag} has no effect on an ONNX file; remove it, or name its export")
    check_top(args.top, args.out)
    model = OnnxModel(args.model, args.threads or 0)
    return model, model.task(**options)


def _of_run(args: argparse.Namespace, options: dict[str, Any]) -> tuple[Model, Pipeline]:
    """Open an export or a checkpoint, and further ones."""
    from bertjax.config.opening import SavedModel
    from bertjax.inference.ensemble import Ensemble
    from bertjax.inference.predictor import PIPELINES, Predictor
    from bertjax.runtime import platform

    if args.threads is not None:
        raise UserError(f"--threads={args.threads} has an effect on ONNX files only; remove it")
    platform.configure(args.platform)
    saved = {name: SavedModel(name, args.trust_code, args.task) for name in (args.model, *args.others)}
    models = {name: each.export for name, each in saved.items()}
    for each in saved.values():
        each.note_unfinished("used")
    predictor = Ensemble(models) if args.others else Predictor(models[args.model])
    do = args.do or predictor.default
    if args.others and do != "task":
        raise UserError(f"--with={args.others[0]} averages predictions of fine-tuned models, not --do={do}; remove it")
    if do == "task":
        check_top(args.top, args.out)
    elif columns := options.get("columns"):
        name, column = columns[0]
        raise UserError(f"--{name}={column} has no effect with --do={do}, which reads the field 'text'; remove it")
    # An option that is passed on must be one of the pipeline's. A flag that is not given is None, empty or False.
    if stray := options.keys() - {field.name for field in dataclasses.fields(PIPELINES[do])}:
        remedy = "remove it" if args.do or stray - {"normalize", "layers", "per_token"} else "add --do=embed"
        raise UserError(f"--{stray.pop().replace('_', '-')} has no effect with --do={do}; {remedy}")
    # The depth is known only now that the model is open.
    if args.layers:
        options["layers"] = _layers(args.layers, predictor.model.encoder.layers)
    return predictor, predictor.pipeline(PIPELINES[do], **options)
