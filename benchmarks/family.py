"""The BERT family, trained on the embedded corpus at equal FLOPs and measured alike.

    taskset -c 0 python -m benchmarks.family --data=DATA --budget-hours=12
    python -m benchmarks.family --dry-run
    python -m benchmarks.family --markdown

Every row of `benchmarks/family_config.py` gets its learning rate from the same three by its own held-out loss (seed 0,
a third of the FLOPs). Then it is trained with seeds 0, 1 and 2 for the steps that cost as many FLOPs as `mlm`. Each
model is measured four times: its own held-out loss, the share of held-out sentences that it prefers to the same
sentence with two neighboring words exchanged, a linear probe of each frozen layer, and a fine-tuning on SST-2. For
ELECTRA the generator scores the sentences, since its encoder does not predict tokens. `causal` scores them from left to
right.

A cell is a training run with its measures: a line of --results. A cell that has a line with the settings of today is
not run again, a cell that was interrupted resumes at its last checkpoint, and other settings make other lines.
DATA has ud/en_ewt.train.conllu.gz, ud/en_ewt.dev.conllu.gz, glue/SST-2/train.tsv.gz and glue/SST-2/dev.tsv.gz.
`--ablations` runs the second table, at the learning rates of the first. `--rows=bert,mlm` runs these rows only, so that
several commands, one per core, share the work and the file.
"""

import argparse
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import resumable
from benchmarks.commands import REPOSITORY, json_of, train
from benchmarks.family_config import ABLATIONS, STUDENT, TEACHER
from benchmarks.family_plan import ABLATION, PAIRS, RATE, SEED, Cell, Progress, cells, flops_of, own_loss, steps_of_cell
from benchmarks.family_table import markdown
from benchmarks.train_step import machine
from bertjax.config import config_file
from bertjax.config.opening import SavedModel
from bertjax.data.preparation.prepare import prepare
from bertjax.data.random import uniform
from bertjax.runtime import command_line
from bertjax.runtime.errors import RunFailed, UserError
from bertjax.training.run.workdir import has_trained

RESULTS = REPOSITORY / "benchmarks" / "results" / "family.jsonl"
FILES = tuple(f"ud/en_ewt.{split}.conllu.gz" for split in ("train", "dev")) + tuple(
    f"glue/SST-2/{split}.tsv.gz" for split in ("train", "dev")
)
_WORD = re.compile("[a-z]+")
_TEACHER_CELL = Cell(TEACHER, SEED, 0)


def measure(cell: Cell, progress: Progress, out: Path, data: Path) -> dict[str, Any]:
    """Train one model and measure it, unless it only chooses a learning rate; return its line of the file."""
    started = resumable.core_seconds()
    workdir, rate = out / cell.name, progress.rate_of(cell)
    is_resumed = has_trained(workdir)
    summary = train_cell(cell, rate, out)
    totals = SavedModel(str(workdir)).export.numbers
    line = cell._asdict() | {
        "rate": rate,
        "config": progress.fingerprint(cell),
        "steps": summary["steps"],
        "flops": totals["flops"],
        "executed_flops": totals["executed_flops"],
        "training_seconds": resumable.core_seconds() - started,
        "resumed": is_resumed,
        "tokens": summary["tokens"],
        "eval": summary["eval"],
        "baseline": summary["baseline"],
        "own_loss": own_loss(cell.row, summary["eval"]),
        "machine": machine(),
    }
    if cell.kind != RATE:
        export = workdir / "export"
        pairs = json_of("bertjax.evaluate", str(export), f"--minimal-pairs={_pairs(out)}", "--json", "--platform=cpu")
        line["pairs"] = {name: pairs["minimal_pairs"][name] for name in ("accuracy", "ties", "pairs")}
        line["probe"] = json_of("benchmarks.family_probe", str(export), f"--data={data}")
        tuned = train(
            f"benchmarks/family_finetuning.py:{export},{data}", workdir / "sst2", f"--config.seed={cell.seed}"
        )
        line["finetuning"] = {"accuracy": tuned["eval"]["accuracy"], "majority": tuned["baseline"]["majority_accuracy"]}
    return line | {"core_seconds": resumable.core_seconds() - started}


def train_cell(cell: Cell, rate: float, out: Path) -> dict[str, Any]:
    """Train the model of a cell, from its last checkpoint if it has one; return the summary of the run."""
    teacher = f",{out / _TEACHER_CELL.name / 'export'}" if cell.row == STUDENT else ""
    config = f"benchmarks/family_config.py:{cell.row},{steps_of_cell(cell)},{rate:g}{teacher}"
    return train(config, out / cell.name, f"--config.seed={cell.seed}")


def _pairs(out: Path) -> Path:
    path = out / "pairs.jsonl"
    if not path.exists():
        write_pairs(path)
    return path


def write_pairs(path: Path) -> None:
    """Write held-out sentences of 6 to 16 words, each with a copy in which two neighboring words are exchanged."""
    store = prepare(config_file.load("benchmarks/family_config.py").data)
    split = store.split("heldout")
    texts = [
        store.tokenizer.decode(np.asarray(split.tokens[start:stop]).tolist())
        for start, stop in zip(split.sentences, split.sentences[1:])
    ]
    lines = []
    for number, text in enumerate(texts):
        words = text.split()
        places = [
            place
            for place in range(1, len(words) - 2)
            if words[place] != words[place + 1] and all(map(_WORD.fullmatch, words[place : place + 2]))
        ]
        if 6 <= len(words) <= 16 and places:
            place = places[int(uniform(0, "family/pairs", 0, number, 0) * len(places))]
            words[place : place + 2] = words[place + 1], words[place]
            lines.append(json.dumps({"sentence_good": text, "sentence_bad": " ".join(words)}, ensure_ascii=False))
    draft = path.with_suffix(".part")
    draft.write_text("\n".join(lines[:: max(1, len(lines) // PAIRS)][:PAIRS]) + "\n", encoding="utf-8")
    draft.rename(path)


def plan_lines(progress: Progress, plan: list[Cell]) -> list[str]:
    """Return the plan as text: a line for each cell, and the core-hours of all that is left."""
    text, left = [f"{'cell':<36} {'steps':>7} {'FLOPs':>9} {'min':>6}"], 0.0
    for cell in plan:
        steps, seconds, is_done = steps_of_cell(cell), progress.seconds_of(cell), progress.find(cell) is not None
        left += 0.0 if is_done else seconds
        flops = flops_of(cell.row, steps)
        text.append(f"{cell.name:<36} {steps:>7,} {flops:>9.2e} {seconds / 60:>6.1f}{'  finished' if is_done else ''}")
    return [*text, f"{left / 3600:.1f} core-hours left"]


def run_cells(progress: Progress, plan: list[Cell], out: Path, data: Path, budget_hours: float) -> None:
    """Run the cells that have no line, until the cells of the plan have taken `budget_hours` core-hours together.

    A cell that fails does not stop the others, since the command is meant to run unattended.

    Raises:
      UserError: the learning rate of an ablation is not chosen yet.
      RunFailed: cells have failed; they are listed.
    """
    failed = []
    for number, cell in enumerate(plan, 1):
        if progress.find(cell):
            continue
        if progress.rate_of(cell) is None:
            if cell.kind == ABLATION:
                raise UserError(
                    f"{cell.row} has the learning rate of the row {ABLATIONS[cell.row].rate_of}, which is not chosen "
                    "yet; run the same command without --ablations first"
                )
            failed.append(f"{cell.name} (its learning rate is not chosen)")
            continue
        spent = sum(line["core_seconds"] for line in map(progress.find, plan) if line)
        if budget_hours and spent + progress.seconds_of(cell) > 3600 * budget_hours:
            hours = f"{spent / 3600:.2f} core-hours are spent"
            print(f"{hours}; {cell.name} would exceed --budget-hours={budget_hours:g}")
            break
        print(f"cell {number} of {len(plan)}: {cell.name}", file=sys.stderr)
        try:
            _open_teacher(cell, progress, out)
            progress.append(measure(cell, progress, out, data))
        except RunFailed as error:
            failed.append(cell.name)
            print(f"{cell.name} failed: {error}", file=sys.stderr)
        else:
            if cell != _TEACHER_CELL:
                shutil.rmtree(out / cell.name)
    resumable.report(failed)


def _open_teacher(cell: Cell, progress: Progress, out: Path) -> None:
    """Train the teacher of a student again where its export is missing: it is not in the file of results."""
    if cell.row == STUDENT and not (out / _TEACHER_CELL.name / "export").exists():
        rate = progress.rate_of(_TEACHER_CELL)
        if rate is None:
            raise RunFailed(f"the learning rate of the teacher, {TEACHER}, is not chosen")
        train_cell(_TEACHER_CELL, rate, out)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser(
        prog="python -m benchmarks.family",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--data", type=Path, help=f"folder of {', '.join(FILES)}")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/family"), help="folder of the runs (default: %(default)s)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the lines (default: %(default)s)")
    parser.add_argument("--ablations", action="store_true", help="run the second table instead of the first")
    parser.add_argument("--rows", default="", help="names of rows, separated by commas (default: all)")
    parser.add_argument(
        "--budget-hours",
        type=float,
        default=0.0,
        help="core-hours of all cells of the table together (default: no limit)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and run nothing")
    parser.add_argument("--markdown", action="store_true", help="print the tables of the finished cells")
    args = parser.parse_args(argv)
    progress, plan = Progress(args.results), cells(args.ablations, args.rows)
    if args.markdown:
        print(markdown(progress))
    elif args.dry_run:
        print("\n".join(plan_lines(progress, plan)))
    else:
        if args.data is None:
            raise UserError("--data is missing; see python -m benchmarks.family --help")
        for name in FILES:
            if not (args.data / name).exists():
                raise UserError(f"--data={args.data} has no {name}; name a folder of {', '.join(FILES)}")
        if args.budget_hours < 0:
            raise UserError(f"--budget-hours={args.budget_hours:g} must not be negative; 0 means no limit")
        args.out.mkdir(parents=True, exist_ok=True)
        run_cells(progress, plan, args.out.resolve(), args.data.resolve(), args.budget_hours)
    return 0


if __name__ == "__main__":
    sys.exit(command_line.exit_code_of(main))
