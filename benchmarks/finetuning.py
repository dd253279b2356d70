"""Fine-tuning with bertjax beside the same recipe with transformers' `Trainer` on PyTorch: scores and seconds, on CPU.

    python -m benchmarks.finetuning --model=HF_FOLDER --data=FOLDER --tasks=MRPC,STS-B,CoLA --seeds=5 \
        --out=finetuning.jsonl --torch-python=OTHER_VENV/bin/python
    python -m benchmarks.finetuning --model=HF_FOLDER --data=FOLDER --tasks=CoNLL-2003,QA --limit=1000 ...
    python -m benchmarks.finetuning --out=finetuning.jsonl --markdown
    python -m benchmarks.finetuning --smoke --torch-python=OTHER_VENV/bin/python

Both arms start from the weights of one folder of transformers, which is converted for bertjax. The recipe comes from
`configs/finetune/glue.py`, `ner.py` or `qa.py`. `--config.a.b=value` changes it in both arms for every task, and
`--config.tasks.NAME.` for one task. bertjax's arm is the command that users run; the other arm is
`benchmarks/arms/trainer.py`. Each run is a process of its own and a line of the file. The arms take turns seed by seed,
and a restarted command continues with the missing runs. Scores are computed here from the predictions of either arm
after the last step; no checkpoint is selected on the development set.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import finetuning_smoke, finetuning_table, resumable
from benchmarks.arms.trainer import PACKAGES
from benchmarks.commands import call
from benchmarks.finetuning_cell import SOURCES, Cell, job_of, open_cell
from benchmarks.finetuning_scores import majority, scores_of
from benchmarks.resumable import Line, finished
from benchmarks.train_step import machine, threads
from bertjax.cli import convert
from bertjax.config import config_file
from bertjax.runtime import command_line, platform
from bertjax.runtime.errors import UserError

TASKS = tuple(SOURCES)
ARMS = ("bertjax", "trainer")
_NEVER = 10**9


def run_bertjax(cell: Cell, seed: int, folder: Path) -> tuple[list, dict[str, Any]]:
    """Train with the command that users run. Evaluates and saves only at the end, like the other arm.

    Returns:
      [(label, prediction)] of the held-out records, and a dict with `updates`, `train_seconds` and `versions`.
    """
    once = ("eval.every", "runtime.save_every", "runtime.log_every")
    overrides = [*cell.overrides, f"seed={seed}", "runtime.keep_best=0", *(f"{name}={_NEVER}" for name in once)]
    flags = ["--platform=cpu", f"--workdir={folder / 'run'}", *(f"--config.{override}" for override in overrides)]
    call("bertjax.train", f"--config={SOURCES[cell.task].config}", *flags)
    summary = json.loads((folder / "run" / "summary.json").read_text())
    lines = (folder / "run" / "predictions" / "heldout.jsonl").read_text().splitlines()
    accounts = summary["accounts"]
    return [(record[cell.label], record["prediction"]) for record in map(json.loads, lines)], {
        "updates": summary["steps"],
        "train_seconds": accounts["step"] + accounts["data_wait"],
        "versions": {package: metadata.version(package) for package in ("jax", "jaxlib", "flax", "optax")},
    }


def run_trainer(
    cell: Cell, seed: int, folder: Path, model: Path, python: str, threads: int
) -> tuple[list, dict[str, Any]]:
    """Train with transformers; return the same as `run_bertjax`."""
    job = folder / "job.json"
    job.write_text(json.dumps(job_of(cell, model, seed, threads)))
    call("benchmarks.arms.trainer", str(job), python=python)
    predictions = json.loads((folder / "predictions.json").read_text())
    pairs = [
        (record[cell.label], cell.named(prediction))
        for record, prediction in zip(cell.heldout, predictions, strict=True)
    ]
    return pairs, json.loads((folder / "figures.json").read_text())


def missing(cell: Cell, arms: Sequence[str], seeds: int, lines: list[Line]) -> list[tuple[int, str]]:
    """Return (seed, arm) of the runs of a task that the file lacks; the arms take turns in starting a seed.

    Raises:
      UserError: the file contains the task with another recipe.
    """
    of_task = [line for line in lines if line["task"] == cell.task]
    for line in of_task:
        for name, value in cell.recipe.items():
            if line["recipe"][name] != value:
                raise UserError(
                    f"--out has {cell.task} with {name}={line['recipe'][name]}, and this call has {value}; name "
                    "another file, or give the same flags"
                )
    done = {(line["seed"], line["arm"]) for line in of_task}
    turns = [(seed, arm) for seed in range(seeds) for arm in (arms if seed % 2 == 0 else reversed(arms))]
    return [turn for turn in turns if turn not in done]


def measure(cell: Cell, seed: int, arm: str, model: Path, python: str) -> Line:
    """Run one arm with one seed and return its line of the file."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        if arm == "bertjax":
            pairs, figures = run_bertjax(cell, seed, Path(folder))
        else:
            pairs, figures = run_trainer(cell, seed, Path(folder), model, python, threads())
        wall_seconds = time.monotonic() - began
    metric = cell.config.task.objective.best_metric
    scores = scores_of(cell, pairs)
    return {
        "task": cell.task,
        "arm": arm,
        "seed": seed,
        "metric": metric,
        "score": scores[metric],
        "majority": majority(cell).get(metric),
        "wall_seconds": wall_seconds,
        **figures,
        "scores": scores,
        "recipe": cell.recipe,
        "train_examples": len(cell.train),
        "threads": threads(),
        "machine": machine(),
    }


def _check_peer(python: str) -> None:
    command = [python, "-c", f"import {', '.join(PACKAGES)}"]
    try:
        process = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise UserError(f"--torch-python={python} cannot be started ({error.strerror}); name a Python") from error
    if process.returncode:
        reason = "".join(f" ({line})" for line in process.stderr.splitlines()[-1:])
        raise UserError(
            f"--torch-python={python} does not import {', '.join(PACKAGES)}{reason}; install them there as "
            "benchmarks/README.md describes, or give --arms=bertjax"
        )


def _run_all(args: argparse.Namespace, overrides: Sequence[str]) -> None:
    if "trainer" in args.arms:
        _check_peer(args.torch_python)
    platform.configure_logging()
    platform.configure("cpu")
    with tempfile.TemporaryDirectory() as folder:
        convert.run(args.model, Path(folder) / "export")
        cells = [open_cell(task, args.data, Path(folder) / "export", args.limit, overrides) for task in args.tasks]
        lines = finished(args.out)
        turns = [(cell, *turn) for cell in cells for turn in missing(cell, args.arms, args.seeds, lines)]
        resumable.run(
            {f"{cell.task}, seed {seed}, {arm}": (cell, seed, arm) for cell, seed, arm in turns},
            args.out,
            lambda turn: measure(*turn, args.model, args.torch_python),
        )


def _smoke(args: argparse.Namespace, overrides: Sequence[str]) -> None:
    # Compiles fast rather than well.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
    with tempfile.TemporaryDirectory() as folder:
        args.tasks, args.seeds, args.limit = [task for task in args.tasks if task in finetuning_smoke.TASKS], 1, 0
        args.model, args.data = finetuning_smoke.write(Path(folder))
        args.out = args.out or Path(folder) / "smoke.jsonl"
        _run_all(args, overrides)
        print(finetuning_table.markdown(finished(args.out)))
    print("\nA smoke run only shows that the benchmark runs; its figures have no meaning.")


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser(
        prog="python -m benchmarks.finetuning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--model", type=Path, help="folder of transformers with a BERT and its tokenizer")
    parser.add_argument("--data", type=Path, help="folder of glue/TASK/*.tsv, conll2003/*.txt and qa/*.json, or .gz")
    parser.add_argument("--tasks", default="", help=f"some of {', '.join(TASKS)} (default: all)")
    parser.add_argument("--arms", default="", help=f"some of {', '.join(ARMS)} (default: both)")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, counted from 0")
    parser.add_argument("--limit", type=int, default=0, help="use only the first LIMIT training records of each task")
    parser.add_argument("--torch-python", default=sys.executable, help="interpreter with torch and transformers")
    parser.add_argument("--out", type=Path, help="one JSON line for each finished run")
    parser.add_argument("--markdown", action="store_true", help="print the tables of the finished runs")
    parser.add_argument(
        "--smoke", action="store_true", help="run four tasks of 64 synthetic examples on a very small BERT"
    )
    args, overrides = config_file.parse(parser, argv)
    args.tasks, args.arms = (
        resumable.chosen(getattr(args, name), known, f"--{name}") for name, known in (("tasks", TASKS), ("arms", ARMS))
    )
    if args.seeds < 1:
        raise UserError(f"--seeds={args.seeds} must be at least 1")
    if args.smoke:
        _smoke(args, overrides)
        return 0
    for name in ("out",) if args.markdown else ("out", "model", "data"):
        if getattr(args, name) is None:
            raise UserError(f"--{name} is missing; see python -m benchmarks.finetuning --help")
    if args.markdown:
        print(finetuning_table.markdown(finished(args.out)))
    else:
        _run_all(args, overrides)
    return 0


if __name__ == "__main__":
    sys.exit(command_line.exit_code_of(main))
