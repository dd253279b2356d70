"""Small models of one teacher, each made by a published method, beside the same student without the method.

    taskset -c 0 python -m benchmarks.compression --model=HF_FOLDER --data=DATA --corpus=FILE
    python -m benchmarks.compression --dry-run
    python -m benchmarks.compression --markdown
    python -m benchmarks.compression --csv > docs/results/compression.csv

The teacher is an encoder of transformers without a masked-LM head, trained as a masked LM on the corpus for some steps
and then fine-tuned with seed 0. `benchmarks/compression_rows.py` has the commands of every row. A cell is a row with a
task and a seed: its model is made and scored on the development set. Each cell is a line of --results; a cell with a
line of today's commands is not run again, and an interrupted training resumes. What cells share, the converted encoder
and the teacher, is in --out and is made again where it is missing. A teacher with another score is another one: give it
a new number with --run, since a student is compared within its run only. `--rows=pkd,soft` and `--tasks=SST-2` choose
cells. DATA has glue/SST-2, glue/MRPC and glue/STS-B with train.tsv.gz and dev.tsv.gz. How large and fast the models are
was measured by `benchmarks/compression_speed.py` at commit f2ced4d0.
"""

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks import resumable
from benchmarks.commands import REPOSITORY, call, json_of
from benchmarks.compression_commands import adapting
from benchmarks.compression_rows import ROWS
from benchmarks.compression_table import markdown, table
from benchmarks.compression_tasks import TASKS, Place, Task
from benchmarks.resumable import Line, finished
from benchmarks.train_step import machine
from bertjax.analysis.labeled_files import COLUMNS
from bertjax.config.export import WEIGHTS
from bertjax.data.labeled.split import limited
from bertjax.data.labeled.texts import LabeledText
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError

RESULTS = REPOSITORY / "benchmarks" / "results" / "compression.jsonl"
SEEDS = (0, 1, 2)
TEACHER = "teacher"


class Cell(NamedTuple):
    """A row with a task and a seed."""

    row: str
    task: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.row}-{self.task}-{self.seed}"

    def place(self, out: Path, corpus: str) -> Place:
        teacher = out / Cell(TEACHER, self.task, 0).name / ROWS[TEACHER].model
        return Place(
            self.task, self.seed, out / "data" / self.task, corpus, out / "adapted" / "export", teacher, out / self.name
        )

    @property
    def fingerprint(self) -> str:
        """A hash of the commands that make the model and the teacher, and of the records that they use."""
        place = self.place(Path("OUT"), "CORPUS")
        teacher = ROWS[TEACHER].commands(place), adapting(Path("HF"), "CORPUS", Path())
        made_of = TASKS[self.task].records, teacher, ROWS[self.row].commands(place)
        return resumable.fingerprint(made_of)


def cells(rows: str = "", tasks: str = "") -> list[Cell]:
    """Return the cells of rows and tasks, all if empty: seed 0 of all rows first, the teacher before its students.

    Rows that train nothing have seed 0 only.
    """
    wanted, on = resumable.chosen(rows, ROWS, "--rows"), resumable.chosen(tasks, TASKS, "--tasks")
    seeds_of = {row: SEEDS if ROWS[row].is_trained else SEEDS[:1] for row in wanted}
    return [Cell(row, task, seed) for seed in SEEDS for task in on for row in wanted if seed in seeds_of[row]]


def missing(plan: list[Cell], lines: list[Line], run: int) -> list[Cell]:
    """Return the cells that have no line of a run with the commands of today."""
    done = {(line["row"], line["task"], line["seed"], line["commands"]) for line in lines if line["run"] == run}
    return [cell for cell in plan if (*cell, cell.fingerprint) not in done]


def measure(cell: Cell, place: Place, run: int) -> Line:
    """Make the model of a cell and return its line."""
    began = resumable.core_seconds()
    model = make(cell, place, call)
    # A cut export names its training file, which the baseline needs, without a folder.
    heldout = f"--corpus={place.data}/heldout.jsonl"
    scores = json_of("bertjax.evaluate", str(model), heldout, "--json", "--platform=cpu", folder=place.data)
    return cell._asdict() | {
        "run": run,
        "commands": cell.fingerprint,
        **{name: scores[name] for name in ("eval", "baseline")},
        "core_seconds": resumable.core_seconds() - began,
        "machine": machine(),
    }


def make(cell: Cell, place: Place, run: Callable[..., None]) -> Path:
    """Run the commands of a cell, unless its model is there, and return the model.

    A command whose `--to` is there has been run before.
    """
    model = place.out / ROWS[cell.row].model
    if not (model / WEIGHTS).exists():
        place.out.mkdir(parents=True, exist_ok=True)
        for command in ROWS[cell.row].commands(place):
            targets = [flag.partition("=")[2] for flag in command if flag.startswith("--to=")]
            if not any(Path(target).exists() for target in targets):
                run(*command)
    return model


def write_records(task: Task, data: Path, folder: Path) -> None:
    """Write the records that all cells of a task use, training records up to its limit, and the texts of these."""
    files = {
        split: str(data / "glue" / task.name / f"{name}.tsv.gz")
        for split, name in (("train", "train"), ("heldout", "dev"))
    }
    text, pair, label = COLUMNS[task.name]
    labeled = LabeledText(**files, text=text, pair=pair, label=label, limit=task.limit)
    renamed = dict(zip(labeled.inputs, task.columns.values(), strict=True)) | {label: "label"}
    folder.mkdir(parents=True, exist_ok=True)
    for split, path in files.items():
        records = labeled.read(path)
        if split == "train":
            records = limited(records, labeled)
            texts = [record[column] for record in records for column in labeled.inputs]
            (folder / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        chosen = [{ours: record[theirs] for theirs, ours in renamed.items()} for record in records]
        lines = [json.dumps(record, ensure_ascii=False) for record in chosen]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def prepare_teacher(task: str, place: Place, model: Path, run: Callable[..., None]) -> None:
    """Make the adapted encoder and the teacher of a task, unless they are there."""
    folder = place.adapted.parent
    if not (place.adapted / WEIGHTS).exists():
        if not (folder.parent / "converted" / WEIGHTS).exists():
            run("bertjax.convert", f"--from={model}", f"--to={folder.parent / 'converted'}")
        for command in adapting(folder.parent / "converted", place.corpus, folder):
            run(*command)
    teacher = Cell(TEACHER, task, 0)
    make(teacher, place._replace(seed=0, out=folder.parent / teacher.name), run)


def run_cells(plan: list[Cell], args: argparse.Namespace) -> None:
    """Run the cells that have no line.

    Raises:
      RunFailed: cells have failed; the others have run.
    """

    def place_of(cell: Cell) -> Place:
        return cell.place(args.out.resolve(), str(args.corpus.resolve()))

    def line_of(cell: Cell) -> Line:
        place = place_of(cell)
        write_records(TASKS[cell.task], args.data, place.data)
        prepare_teacher(cell.task, place, args.model.resolve(), call)
        return measure(cell, place, args.run)

    def clean(cell: Cell) -> None:
        if (cell.row, cell.seed) != (TEACHER, 0):
            shutil.rmtree(place_of(cell).out)

    todo = missing(plan, finished(args.results), args.run)
    resumable.run({cell.name: cell for cell in todo}, args.results, line_of, clean)


def _commands(plan: list[Cell], args: argparse.Namespace) -> str:
    """Return the commands of seed 0 as a shell runs them, first those that make the encoder of the teacher."""
    todo, corpus = missing(plan, finished(args.results), args.run), str(args.corpus or "CORPUS")
    converted, adapted = args.out / "converted", args.out / "adapted"
    convert = ["bertjax.convert", f"--from={args.model or 'MODEL'}", f"--to={converted}"]
    made = {"the encoder of the teacher": [convert, *adapting(converted, corpus, adapted)]}
    for cell in plan:
        if cell.seed == SEEDS[0]:
            name = cell.name if cell in todo else f"{cell.name} (finished)"
            made[name] = ROWS[cell.row].commands(cell.place(args.out, corpus))
    return "\n".join(
        line
        for name, commands in made.items()
        for line in (f"# {name}", *(f"python -m {shlex.join(command)}" for command in commands))
    )


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the flags of what the models are made from."""
    for name, what in (("model", "folder of transformers"), ("data", "labeled files"), ("corpus", "text, .jsonl")):
        parser.add_argument(f"--{name}", type=Path, help=what)


def check_inputs(args: argparse.Namespace) -> None:
    """Check that what `add_inputs` names is there.

    Raises:
      UserError: a flag is missing, or its path does not exist.
    """
    for name in ("model", "data", "corpus"):
        if getattr(args, name) is None or not getattr(args, name).exists():
            raise UserError(f"--{name}={getattr(args, name)} does not exist; see --help")


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser(
        prog="python -m benchmarks.compression",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_inputs(parser)
    parser.add_argument("--out", type=Path, default=Path("runs/compression"), help="models (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the lines (default: %(default)s)")
    parser.add_argument("--run", type=int, default=2, help="number of the run: cells with one teacher (%(default)s)")
    parser.add_argument("--rows", default="", help="names of rows, separated by commas (default: all)")
    parser.add_argument("--tasks", default="", help=f"among {', '.join(TASKS)} (default: all)")
    parser.add_argument("--dry-run", action="store_true", help="print the commands of all cells of seed 0")
    parser.add_argument("--markdown", action="store_true", help="print the table of the finished cells")
    parser.add_argument("--csv", action="store_true", help="print the same table as CSV")
    args = parser.parse_args(argv)
    plan = cells(args.rows, args.tasks)
    if args.markdown:
        print(markdown(finished(args.results)))
    elif args.csv:
        print(table(finished(args.results)), end="")
    elif args.dry_run:
        print(_commands(plan, args))
    else:
        check_inputs(args)
        run_cells(plan, args)
    return 0


if __name__ == "__main__":
    sys.exit(command_line.exit_code_of(main))
