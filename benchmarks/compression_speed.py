"""How large and fast the models of `benchmarks.compression` are, on one core that does nothing else.

    taskset -c 0 python -m benchmarks.compression_speed --model=HF_FOLDER --data=DATA --corpus=FILE
    python -m benchmarks.compression_speed --markdown

Size and speed depend on the shape of a model, not on how well it is trained. So the commands of one row of each shape
run with a single step in every training, which takes about ten minutes for all. Then all models are measured in turns
in one process: rows of 32 tokens, in batches of 1 and of 32. If the Python of --torch-python has bertjax with the extra
[onnx], ONNX Runtime is measured too, on one thread; an int8 model is an ONNX file in int8 there. The models stay in
--out, so a second command only measures. A measurement is a line of --results, and the table is that of the last one.
"""

import argparse
import os
import sys
from pathlib import Path

from benchmarks.commands import REPOSITORY, call, json_of
from benchmarks.compression import Cell, add_inputs, check_inputs, make, prepare_teacher, write_records
from benchmarks.compression_commands import Command
from benchmarks.compression_rows import ROWS, shape_of
from benchmarks.compression_table import latency, of_rows
from benchmarks.compression_tasks import TASKS
from benchmarks.resumable import Line, append, finished
from benchmarks.train_step import machine
from bertjax.config.export import WEIGHTS
from bertjax.config.opening import SavedModel
from bertjax.models import vocabulary
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError

RESULTS = REPOSITORY / "benchmarks" / "results" / "compression_speed.jsonl"
SHAPES = tuple(dict.fromkeys(map(shape_of, ROWS)))
_TASK = "SST-2"
_ARMS = {"bertjax": "benchmarks.arms.latency", "ONNX Runtime": "benchmarks.arms.onnx_latency"}
_BATCHES = ("batch_1", "batch_32")


def in_one_step(command: Command) -> Command:
    """Return a command whose trainings, if it has any, have one step in each stage and a short evaluation."""
    if command[0] not in ("bertjax.train", "benchmarks.arms.train_layer_bits"):
        return command
    stages = {"0", *(flag.split(".")[2] for flag in command if flag.startswith("--config.stages."))}
    shorter = ("epochs=0", "steps=1", "min_steps=0", "warmup_steps=0")
    steps = [f"--config.stages.{stage}.{setting}" for stage in sorted(stages) for setting in shorter]
    return [*command, *steps, "--config.eval.rows=64"]


def make_models(args: argparse.Namespace) -> dict[str, Path]:
    """Make a model of each shape, unless it is there; return {shape: model}."""

    def run(*command: str) -> None:
        call(*in_one_step(list(command)))

    models = {}
    for shape in SHAPES:
        cell = Cell(shape, _TASK, 0)
        place = cell.place(args.out.resolve(), str(args.corpus.resolve()))
        write_records(TASKS[_TASK], args.data, place.data)
        prepare_teacher(_TASK, place, args.model.resolve(), run)
        models[shape] = make(cell, place, run)
    return models


def measure(models: dict[str, Path], torch_python: str) -> Line:
    """Return {`machine`, `shapes`: {shape: parameters, bytes and milliseconds of a sentence by each runtime}}."""
    paths = list(map(str, models.values()))
    pythons = {"bertjax": sys.executable, "ONNX Runtime": torch_python}
    taken = {runtime: json_of(arm, *paths, python=pythons[runtime]) for runtime, arm in _ARMS.items()}
    shapes = {}
    for shape, model in models.items():
        export = SavedModel(str(model)).export
        shapes[shape] = {
            "parameters": vocabulary.count_parameters(export.params, export.encoder),
            "bytes": (model / WEIGHTS).stat().st_size,
            "milliseconds": {runtime: of[str(model)] for runtime, of in taken.items() if str(model) in of},
        }
    return {"shapes": shapes, "machine": machine(), "cores": len(os.sched_getaffinity(0))}


def markdown(line: Line) -> str:
    """Return the table of a measurement."""
    shapes = line["shapes"]
    teacher = shapes["teacher"]
    runtimes = list(teacher["milliseconds"])

    def cells(shape: str, one: Line) -> list[str]:
        sizes = [
            f"{one[name] / 1e6:.1f} {unit} ({teacher[name] / one[name]:.1f}x)"
            for name, unit in (("parameters", "M"), ("bytes", "MB"))
        ]
        taken = one["milliseconds"]
        of = [(taken.get(runtime), teacher["milliseconds"][runtime]) for runtime in runtimes]
        speed = [latency([(own[size], its[size])]) if own else "" for own, its in of for size in _BATCHES]
        return [f"`{shape}`", *sizes, *speed]

    names = [f"{runtime}: ms at {size}" for runtime in runtimes for size in (1, 32)]
    return of_rows(["shape", "parameters", "bytes", *names], [cells(*item) for item in shapes.items()])


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser(
        prog="python -m benchmarks.compression_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_inputs(parser)
    parser.add_argument("--out", type=Path, default=Path("runs/compression_speed"), help="models (%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the lines (default: %(default)s)")
    parser.add_argument("--torch-python", default=sys.executable, help="Python with bertjax[onnx] for ONNX Runtime")
    parser.add_argument("--markdown", action="store_true", help="print the table of the last measurement")
    args = parser.parse_args(argv)
    if not args.markdown:
        check_inputs(args)
        append(args.results, measure(make_models(args), args.torch_python))
    elif not finished(args.results):
        raise UserError(f"{args.results} has no measurement; run the command without --markdown first")
    print(markdown(finished(args.results)[-1]))
    return 0


if __name__ == "__main__":
    sys.exit(command_line.exit_code_of(main))
