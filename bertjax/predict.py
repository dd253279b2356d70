"""python -m bertjax.predict: uses a model, from the command line; `bertjax.predictor` does the same in Python."""

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from bertjax import cli, storage
from bertjax.data.labeled.base import Record
from bertjax.errors import UserError
from bertjax.hardware import platform
from bertjax.inference.base import Pipeline
from bertjax.inference.embed import Embed
from bertjax.inference.predictor import PIPELINES, Predictor, Request
from bertjax.inference.progress import bar
from bertjax.inference.records import read_file, read_lines, records_of, single_field
from bertjax.opening import SavedModel
from bertjax.storage import StorageError

_ARRAY = ".npy"
_HELP = """
What is done follows from the model: a fine-tuned one predicts what it was trained for, a pretrained one fills
masks, and one without a head embeds.

task     the class, the number or whatever a fine-tuned model predicts; records need no label
fill     every [MASK], spelled so, gets the likeliest pieces of the vocabulary with their probabilities;
         "filled" is the text with the best of each
embed    the mean of a text's last hidden states, [CLS] and [SEP] included

examples:
  words for the masks of a sentence:
      python -m bertjax.predict runs/tiny/export "The [MASK] was old, and so was the [MASK]."
  the ten best for each, of all lines of a file, from a certain checkpoint:
      python -m bertjax.predict runs/tiny@3500 --file=sentences.txt --top=10 --out=filled.jsonl
  from a stream, the best sentence alone:
      echo "Long live the [MASK]!" | python -m bertjax.predict runs/tiny | jq -r .filled
  vectors as a numpy array of shape [sentences, width], of length 1:
      python -m bertjax.predict runs/tiny/export --do=embed --normalize --file=sentences.txt --out=vectors.npy

Each record becomes one line of JSON, in the order of the input, with the fields that it came with.
A text that is longer than the model reads is cut at its end, and said so when all is done.
"""


def run(predictor: Predictor, request: Request, out: str = "") -> None:
    """Write the predictions for a request to stdout or to a file, with progress and what was cut on stderr.

    Args:
      predictor: the model.
      request: the result of its `request`.
      out: a file of JSON lines, or a .npy file of embeddings; stdout where empty. It is there when it is complete.

    Raises:
      UserError: the file cannot be written.
    """
    with _target(out) as file, bar(request.tokens) as progress:
        if out.endswith(_ARRAY):
            parts = predictor.outputs(request, progress.update)
            np.save(file, np.concatenate([outputs["embedding_BND"] for outputs in parts]))
        else:
            for prediction in predictor.predictions(request, progress.update):
                file.write(json.dumps(prediction, ensure_ascii=False).encode() + b"\n")
    for note, count in request.notes.items():
        print(f"{count:,} of {request.records:,} texts were {note}", file=sys.stderr)


@contextlib.contextmanager
def _target(out: str) -> Iterator[IO[bytes]]:
    """Return stdout, or a file that appears when all of it is written."""
    if not out:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with storage.whole_file(Path(out).expanduser()) as file:
            yield file
    except StorageError as error:
        raise UserError(f"--out={out} cannot be written: {error.strerror}; name a file in a folder of yours") from None


def _records(texts: list[str], file: str, pipeline: Pipeline) -> list[Record]:
    if texts and file:
        raise UserError(f"there are sentences on the command line and --file={file}; give one of the two")
    if texts:
        return records_of(texts, single_field(pipeline.fields))
    if file:
        return read_file(file, pipeline.fields)
    if sys.stdin.isatty():
        print("one sentence a line, Ctrl-D after the last:", file=sys.stderr)
    return read_lines(sys.stdin.buffer, "stdin", single_field(pipeline.fields))


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = cli.ArgumentParser(
        prog="python -m bertjax.predict",
        description="Uses a model: what it was fine-tuned for, words for [MASK], or texts as vectors.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", help="an export folder, a workdir (its newest checkpoint), or WORKDIR@STEP")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="sentences; without any, --file or stdin is read")
    parser.add_argument(
        "--file",
        default="",
        metavar="F",
        help="a sentence a line, or .jsonl with a field 'text' (a task's own)",
    )
    parser.add_argument("--out", default="", metavar="F", help="write there and not to stdout; embeddings also as .npy")
    parser.add_argument("--do", choices=tuple(PIPELINES), help="what to do (default: what the model was trained for)")
    parser.add_argument("--top", type=int, metavar="K", help="fill: pieces for each mask (5)")
    parser.add_argument("--normalize", action="store_true", default=None, help="embed: vectors of length 1")
    platform.add_flag(parser)
    args = parser.parse_intermixed_args(argv)  # sentences may stand behind flags
    platform.configure_logging()
    platform.configure(args.platform)

    predictor = Predictor(SavedModel(args.model).export)
    do = args.do or predictor.default
    kind = PIPELINES[do]
    options = {name: value for name in ("top", "normalize") if (value := getattr(args, name)) is not None}
    if stray := options.keys() - {field.name for field in dataclasses.fields(kind)}:
        raise UserError(f"--{stray.pop()} says nothing to --do={do}; leave it out")
    if args.out.endswith(_ARRAY) and kind is not Embed:
        raise UserError(f"--out={args.out} holds embeddings alone; add --do=embed, or name a .jsonl file")
    pipeline = predictor.pipeline(kind, **options)
    request = predictor.request(pipeline, _records(args.texts, args.file, pipeline))
    try:
        run(predictor, request, args.out)
    except BrokenPipeError:  # whoever reads stdout has enough; nothing shall fail when it is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(cli.exit_code_of(main))
