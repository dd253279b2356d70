"""Labels that are probably wrong: how many of 100 flipped labels among 2,000 are in the first 100 suspects.

    python -m benchmarks.label_errors --model=EXPORT --data=FOLDER --out=benchmarks/results/label_errors.jsonl \
        --cleanlab-python=OTHER_VENV/bin/python
    python -m benchmarks.label_errors --out=benchmarks/results/label_errors.jsonl --markdown

Each seed draws 2,000 sentences of SST-2's training file, in proportion to their classes, flips the labels of 100 of
them at random, and runs the command that users run, with `examples.folds=5`. cleanlab gets the same probabilities: its
function `find_label_issues` by default, the most suspect first, with its two scores for the order. SST-2 has wrong
labels of its own, which count as wrong suspects here. EXPORT is a converted model, and FOLDER is described in
benchmarks/README.md. A restarted command continues with the missing seeds.
"""

import argparse
import csv
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import resumable
from benchmarks.commands import call, json_of
from benchmarks.resumable import Line, finished
from benchmarks.train_step import machine
from bertjax.data.labeled.subset import limited
from bertjax.data.labeled.texts import LabeledText
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError
from bertjax.training.results import label_errors

RECORDS, FLIPS, FOLDS, SHOWN = 2000, 100, 5, 100
# Of the recipe, but fewer updates: a model that has learned each sentence by heart finds no wrong label.
SETTINGS = {"stages.0.steps": 200, "stages.0.seq_len": 64}


def noisy(path: Path, seed: int, out: Path) -> set[int]:
    """Write sentences with some labels flipped, and return the lines of the flipped ones, counted from 1."""
    format = LabeledText(limit=RECORDS, limit_seed=seed, on_bad_record="skip")
    records = limited(format.read(str(path)), format)
    flipped = set(random.Random(seed).sample(range(len(records)), FLIPS))
    lines = [
        f"{record['sentence']}\t{1 - int(record['label']) if index in flipped else record['label']}\n"
        for index, record in enumerate(records)
    ]
    out.write_text("sentence\tlabel\n" + "".join(lines))
    return {index + 2 for index in flipped}  # the first line has the names of the columns


def measure(seed: int, args: argparse.Namespace) -> Line:
    """Train the folds of one seed and return its line of the file."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flipped = noisy(args.data / "glue/SST-2/train.tsv.gz", seed, folder / "noisy.tsv")
        examples = {"train": folder / "noisy.tsv", "folds": FOLDS, "text": "sentence", "label": "label"}
        settings = {f"tasks.classify.examples.{name}": value for name, value in examples.items()} | SETTINGS
        settings |= {"init_from": args.model, "seed": seed, "runtime.keep_best": 0, "eval.every": 10**9}
        overrides = [f"--config.{name}={value}" for name, value in settings.items()]
        call("bertjax.train", "--config=finetune/classify", "--platform=cpu", f"--workdir={folder}/run", *overrides)
        spread = json.loads((folder / "run/folds.json").read_text())
        with open(folder / "run/predictions/out_of_fold-suspects.csv", newline="") as file:
            suspects = [int(row["line"]) in flipped for row in csv.DictReader(file)]
        answers = folder / "run/predictions/out_of_fold.jsonl"
        records = [json.loads(line) for line in answers.read_text().splitlines()]
        line = {
            "seed": seed,
            "records": len(records),
            "flips": FLIPS,
            "folds": FOLDS,
            **SETTINGS,
            "accuracy": spread["metrics"]["accuracy"],
            "suspects": len(suspects),
            "flips_in_suspects": sum(suspects),
            f"flips_in_first_{SHOWN}": sum(suspects[:SHOWN]),
        }
        if args.cleanlab_python:
            probabilities_MC, labels_M = label_errors.arrays_of(records, "label")
            np.savez(folder / "probabilities.npz", probabilities_MC=probabilities_MC, labels_M=labels_M)
            arrays = f"{folder}/probabilities.npz"
            found = json_of("benchmarks.arms.cleanlab_issues", arrays, python=args.cleanlab_python)
            line["cleanlab"] = found.pop("version")
            for order, indices in found.items():
                hits = [records[index]["line"] in flipped for index in indices]
                line[f"cleanlab_{order}"] = {"suspects": len(hits), f"flips_in_first_{SHOWN}": sum(hits[:SHOWN])}
    return line | {"seconds": time.monotonic() - began, "machine": machine()}


def markdown(lines: list[Line]) -> str:
    """Return a table with a row for each seed, and their mean."""
    first = f"flips_in_first_{SHOWN}"
    columns = {
        "bertjax": lambda line: line[first],
        "cleanlab, self-confidence": lambda line: line["cleanlab_self_confidence"][first],
        "cleanlab, normalized margin": lambda line: line["cleanlab_normalized_margin"][first],
        "accuracy": lambda line: line["accuracy"]["mean"],
    }
    rows = [f"| seed | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    values = {line["seed"]: [value(line) for value in columns.values()] for line in lines}
    if len(values) > 1:
        values["mean"] = np.mean(list(values.values()), axis=0).tolist()
    rows += [f"| {seed} | {' | '.join(f'{each:.4g}' for each in row)} |" for seed, row in values.items()]
    return "\n".join(rows)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser(
        prog="python -m benchmarks.label_errors",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--model", type=Path, help="export of a converted model")
    parser.add_argument("--data", type=Path, help="folder of the tasks")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--cleanlab-python", default="", help="a Python with cleanlab, to compare with")
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines, one for each seed")
    parser.add_argument("--markdown", action="store_true", help="print the table of --out")
    args = parser.parse_args(argv)
    if args.markdown:
        print(markdown(finished(args.out)))
        return 0
    if not args.data or not args.model:
        raise UserError("--data or --model is missing; name the folders of the tasks and of the model")
    done = {line["seed"] for line in finished(args.out)}
    seeds = {f"seed {seed}": seed for seed in range(args.seeds) if seed not in done}
    resumable.run(seeds, args.out, lambda seed: measure(seed, args))
    return 0


if __name__ == "__main__":
    sys.exit(command_line.exit_code_of(main))
