"""The BERT family, trained on the embedded corpus for equal steps and for equal time.

    python -m benchmarks.family --out=family --probe=CONLL_FOLDER
    python -m benchmarks.family --out=family --markdown

Every row of `benchmarks/family_config.py` is trained for the same number of steps, and again for as many steps as fit
into the time that masked language modeling took. Masked language modeling and ELECTRA have `--seeds` seeds of equal
steps. Each model has two scores. The first is a linear layer on its frozen features, for named entities of CoNLL-2003,
if --probe names the folder of its files. The second is how often the model prefers a held-out sentence to the same
sentence with two neighboring words exchanged. For ELECTRA the generator gives that score, since its encoder does not
predict tokens. Each run is a process of its own and a line of OUT/lines.jsonl; a stopped command continues with the
missing runs. On a machine with other load put `taskset -c 0` before the command.
"""

import argparse
import json
import operator
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.family_config import ROWS, STEPS, STUDENT, TEACHER
from bertjax import cli, config_file
from bertjax.data.preparation.prepare import prepare
from bertjax.data.random import uniform
from bertjax.errors import RunFailed, UserError

_REPOSITORY = Path(__file__).resolve().parents[1]
WITH_SEEDS = (TEACHER, "electra")
PAIRS = 500
_LOSSES_A_LINE = 4
_WORD = re.compile("[a-z]+")


class Run(NamedTuple):
    """One training run: a row, equal `steps` or equal `time`, and a seed."""

    row: str
    equal: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.row}-{self.equal}-{self.seed}"


def runs(seeds: int) -> list[Run]:
    """Return all runs in an order in which each finds its inputs: the teacher first, equal steps before equal time."""
    rows = [TEACHER, *(row for row in ROWS if row != TEACHER), STUDENT]
    return [
        Run(row, equal, seed)
        for equal in ("steps", "time")
        for row in rows
        if (row, equal) != (TEACHER, "time")
        for seed in range(seeds if row in WITH_SEEDS and equal == "steps" else 1)
    ]


def finished(path: Path) -> dict[Run, dict[str, Any]]:
    """Return the runs of a file whose last line may be incomplete."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return {Run(line["row"], line["equal"], line["seed"]): line for line in map(json.loads, lines)}


def measure(run: Run, done: dict[Run, dict[str, Any]], out: Path, steps: int, probe: str) -> dict[str, Any]:
    """Train and probe one model; return its line of the file."""
    if run.equal == "time":
        same = done[Run(run.row, "steps", run.seed)]
        steps = round(steps * done[Run(TEACHER, "steps", run.seed)]["seconds"] / same["seconds"])
    workdir, variant = out / run.name, f"{run.row},{steps}"
    if run.row == STUDENT:
        variant += f",{out / Run(TEACHER, 'steps', 0).name / 'export'}"
    summary = _train(f"benchmarks/family_config.py:{variant}", workdir, f"--config.seed={run.seed}")
    line = run._asdict() | {
        "steps": summary["steps"],
        "seconds": summary["accounts"]["step"] + summary["accounts"]["data_wait"],
        "tokens": summary["tokens"],
        "eval": summary["eval"],
        "pairs": _word_order(workdir, out / "pairs.jsonl"),
    }
    if probe:
        probed = _train(f"benchmarks/family_probe.py:{workdir / 'export'},{probe}", workdir / "probe")
        line["probe"] = probed["eval"]["f1"]
    return line


def _word_order(workdir: Path, pairs: Path) -> float:
    """Return the share of pairs in which the model prefers the original sentence."""
    model = str(workdir / "export")
    done = _call("bertjax.evaluate", model, f"--minimal-pairs={pairs}", "--json", stdout=subprocess.PIPE)
    return json.loads(done.stdout)["minimal_pairs"]["accuracy"]


def _train(config: str, workdir: Path, *flags: str) -> dict[str, Any]:
    """Train with the command that users run, unless the run is finished; return the run's summary."""
    _call("bertjax.train", f"--config={config}", f"--workdir={workdir}", *flags, stdout=sys.__stderr__)
    return json.loads((workdir / "summary.json").read_text())


def _call(module: str, *flags: str, stdout: Any) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", module, "--platform=cpu", *flags]
    done = subprocess.run(command, cwd=_REPOSITORY, stdout=stdout)
    if done.returncode:
        what = " ".join(command[1:])
        raise RunFailed(f"{what} ended with code {done.returncode}; run the same command again to continue")
    return done


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


def markdown(done: dict[Run, dict[str, Any]]) -> str:
    """Return the tables for equal steps and equal time, with the mean and the range over seeds."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run, line in done.items():
        groups.setdefault((run.row, run.equal), []).append(line)
    groups |= {(TEACHER, "time"): groups[TEACHER, "steps"]} if (TEACHER, "steps") in groups else {}
    lines = []
    for equal in ("steps", "time"):
        lines += [
            f"| equal {equal} | steps | tokens/s | pairs | probe, F1 | beside `bert` |",
            "|---|---|---|---|---|---|",
        ]
        rows = [row for row in (*ROWS, STUDENT) if (row, equal) in groups]
        lines += [_row(row, groups[row, equal], groups.get(("bert", equal), [])) for row in rows]
        lines += ["", f"| equal {equal}: own loss, held out | |", "|---|---|"]
        lines += [line for row in rows for line in _losses(row, groups[row, equal])] + [""]
    return "\n".join(lines)


def _row(row: str, lines: list[dict[str, Any]], bert: list[dict[str, Any]]) -> str:
    cells = [
        f"`{row}`" + (f" ({len(lines)} seeds)" if len(lines) > 1 else ""),
        f"{round(_mean(lines, lambda line: line['steps'])):,}",
        f"{_mean(lines, lambda line: line['tokens'] / line['seconds']):,.0f}",
        _spread(lines, "pairs"),
        _spread(lines, "probe"),
        "" if row == "bert" else _beside(lines, bert),
    ]
    return f"| {' | '.join(cells)} |"


def _losses(row: str, lines: list[dict[str, Any]]) -> list[str]:
    """Return the rows of the table of losses, at most `_LOSSES_A_LINE` in each."""
    evals = [line["eval"] for line in lines]
    names = [name for name in evals[0] if name.endswith("_loss")]
    losses = [f"{name.removesuffix('_loss')} {_mean(evals, operator.itemgetter(name)):.2f}" for name in names]
    parts = [losses[start : start + _LOSSES_A_LINE] for start in range(0, len(losses), _LOSSES_A_LINE)]
    return [f"| {'' if index else f'`{row}`'} | {', '.join(part)} |" for index, part in enumerate(parts)]


def _mean(lines: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> float:
    return statistics.fmean(map(value, lines))


def _spread(lines: list[dict[str, Any]], name: str) -> str:
    """Return the mean in percent, with the range if there are several seeds."""
    values = [100 * line[name] for line in lines if name in line]
    if not values:
        return ""
    spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def _beside(lines: list[dict[str, Any]], bert: list[dict[str, Any]]) -> str:
    """Return the differences of the means from BERT's, of the scores that both have."""
    words = []
    for name in ("pairs", "probe"):
        if bert and all(name in line for line in (*lines, *bert)):
            value = operator.itemgetter(name)
            difference = 100 * (_mean(lines, value) - _mean(bert, value))
            words.append(f"{name} {difference:+.1f}")
    return ", ".join(words)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = cli.ArgumentParser(
        prog="python -m benchmarks.family",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs and of lines.jsonl")
    parser.add_argument(
        "--probe", default="", metavar="FOLDER", help="folder of CoNLL-2003's train.txt.gz and valid.txt.gz"
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of every row (default: %(default)s)")
    parser.add_argument(
        "--seeds", type=int, default=3, help=f"seeds of {' and '.join(WITH_SEEDS)} (default: %(default)s)"
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables of the finished runs")
    args = parser.parse_args(argv)
    out = args.out.resolve()
    if args.markdown:
        print(markdown(finished(out / "lines.jsonl")))
        return 0
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "pairs.jsonl").exists():
        write_pairs(out / "pairs.jsonl")
    done = finished(out / "lines.jsonl")
    for run, line in done.items():
        if run.equal == "steps" and line["steps"] != args.steps:
            raise UserError(
                f"{out} has runs of {line['steps']} steps, and this call has --steps={args.steps}; name another "
                "folder, or give the same number"
            )
    pending = [run for run in runs(args.seeds) if run not in done or (args.probe and "probe" not in done[run])]
    for number, run in enumerate(pending, 1):
        print(f"run {number} of {len(pending)}: {run.name}", file=sys.stderr)
        done[run] = measure(run, done, out, args.steps, args.probe)
        (out / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in done.values()), encoding="utf-8")
    print(markdown(done))
    return 0


if __name__ == "__main__":
    sys.exit(cli.exit_code_of(main))
