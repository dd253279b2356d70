"""Measure how long a model takes from text to answer, by threads and batch size.

These are the median and 99th percentile of a call, and texts a second. ONNX files are measured without JAX.

examples:
  python -m bertjax bench reviews.onnx reviews.int8.onnx
  python -m bertjax bench runs/reviews reviews.onnx --file=reviews.csv --batch=1,16 --seconds=5

Up to 64 texts are computed, by default of embedded:en. JAX computes on all cores; ONNX Runtime takes --threads. Other
programs on the machine make the numbers worse, and p99 first.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bertjax.data import sources
from bertjax.inference.base import Pipeline, inputs_of
from bertjax.inference.onnx import OnnxModel, cores, is_onnx, one_thread_tokenizers
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError, json_text, printable, say
from bertjax.runtime.setting import Allowed
from bertjax.runtime.storage import place_of, split_name
from bertjax.serving.latency import Timing, measure

_CORPUS = "embedded:en"
# Number of texts, and characters of one, that are taken from a file or corpus.
_TEXTS, _CHARACTERS = 64, 300


def run(
    paths: Sequence[str],
    file: str = "",
    batches: Sequence[int] = (1, 8, 32),
    threads: Sequence[int] = (),
    seconds: float = 2.0,
    trust_code: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield one result per model, number of threads and batch size: the fields of `Timing` and these three.

    Args:
      paths: ONNX files, export folders, workdirs `RUN` or `RUN@STEP`.
      file: texts to compute, a table or one text per line; by default sentences of the embedded English corpus.
      batches: texts per call.
      threads: threads of ONNX Runtime; 1 and all cores if empty. JAX uses all cores.
      seconds: time for each result.
      trust_code: import the modules that a model names as `module:Class`.

    Raises:
      UserError: a model or the file cannot be used.
    """
    for path in paths:
        counts = (threads or sorted({1, cores()})) if is_onnx(path) else (cores(),)
        for count in counts:
            answer, texts = _answers(path, file, count, trust_code)
            for batch in batches:
                timing = measure(answer, texts, batch, seconds)
                yield {"model": path, "threads": count, "batch": batch} | timing._asdict()


def _answers(path: str, file: str, threads: int, trust_code: bool) -> tuple[Callable[[list[Any]], object], list[Any]]:
    """Return the function that computes answers, and the records or texts to compute."""
    if is_onnx(path):
        model = OnnxModel(path, threads)
        return model.predict, records_for(model.task(), file)
    from bertjax.config.opening import SavedModel
    from bertjax.inference.embed import Embed
    from bertjax.inference.predictor import Predictor

    predictor = Predictor(SavedModel(path, trust_code).export)
    if predictor.default == "task":
        return predictor.predict, records_for(predictor.task(), file)
    return predictor.embed, [record["text"] for record in records_for(predictor.pipeline(Embed), file)]


def records_for(pipeline: Pipeline, file: str = "") -> list[dict[str, Any]]:
    """Return records for a model, of a file or of the embedded English corpus."""
    return inputs_of(pipeline, pipeline.read(file)[:_TEXTS]) if file else _sentences(pipeline.fields)


def _sentences(fields: Sequence[str]) -> list[dict[str, Any]]:
    lines = (line for document in sources.documents(_CORPUS, "text") for line in document.text.splitlines())
    short = (line.strip() for line in lines if 0 < len(line.strip()) <= _CHARACTERS)
    texts = [text for _, text in zip(range(_TEXTS + 1), short)]
    # The second text of a pair is that of the next record.
    return [dict(zip(fields, texts[number : number + 2])) for number in range(_TEXTS)]


def line_of(result: dict[str, Any]) -> str:
    """Return a result as a line of the table."""
    timing = Timing(*(result[name] for name in Timing._fields))
    numbers = f"{result['threads']:>7}  {result['batch']:>5}  {timing.p50 * 1e3:>8.2f}  {timing.p99 * 1e3:>8.2f}"
    return f"{numbers}  {timing.texts_per_second:>7,.0f}  {printable(result['model'])}"


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser("bench", __doc__)
    parser.add_argument("models", nargs="+", metavar="PATH", help="an ONNX file, an export folder, a run or RUN@STEP")
    parser.add_flags({"--file=F": "texts: a line each, or a .csv, .tsv, .jsonl or .json"})
    counts: dict[str, Any] = {"type": command_line.positives, "metavar": "N,..."}
    parser.add_argument("--batch", **counts, default="1,8,32", help="texts of a call (default: %(default)s)")
    parser.add_argument("--threads", **counts, default=(), help="for ONNX files (default: 1 and all cores)")
    parser.add_flags({"--seconds": "time for each line (default: %(default)s)"}, type=float, default=2.0)
    parser.add_flags({"--json": "print a line of JSON for each result, times in seconds"}, action="store_true")
    command_line.add_trust_flag(parser)
    command_line.add_platform_flag(parser)
    args = parser.parse_args(argv)
    Allowed(above=0).check("--seconds", args.seconds)
    for path in args.models:  # before anything is measured
        place_of(path, reads_remote=False)
        if not path.startswith("hf:") and not os.path.exists(split_name(path)[0]):
            raise UserError(f"{path} does not exist; name an ONNX file, an export folder, a run or RUN@STEP")
    one_thread_tokenizers()
    if not all(map(is_onnx, args.models)):
        from bertjax.runtime import platform  # imports JAX

        platform.configure(args.platform)
    if not args.json:
        say(f"{'threads':>7}  {'batch':>5}  {'p50 ms':>8}  {'p99 ms':>8}  {'texts/s':>7}  model", flush=True)
    for result in run(args.models, args.file, args.batch, args.threads, args.seconds, args.trust_code):
        say(json_text(result) if args.json else line_of(result), flush=True)
    return 0
