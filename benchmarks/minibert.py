"""Three layers of an English and Korean encoder that learn parts of speech from six (Tsai et al., 2019).

    taskset -c 0 python -m benchmarks.minibert --data=DATA
    python -m benchmarks.minibert --markdown

DATA has ud/en_ewt.train.conllu.gz, ud/en_ewt.dev.conllu.gz and the same of ko_gsd, files of Universal Dependencies. The
committed lines have its dev files as train, and its test files as dev.
`benchmarks/minibert_config.py` pretrains the encoder, on --english and --korean. The teacher is this encoder, trained
on the tags of both languages. The row `minibert` first learns the teacher's soft labels of the tagged sentences and of
8,000 sentences of each corpus, then the tags. A row with a seed is a line of --results; one with a line of today's
commands and corpora is not run again, and an interrupted training resumes. The encoder and the teacher stay in --out.
"""

import argparse
import gzip
import itertools
import random
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks import resumable
from benchmarks.commands import REPOSITORY, call, json_of
from benchmarks.compression_commands import THREE, Command, cut, trained
from benchmarks.compression_table import latency, spread
from benchmarks.minibert_config import get_config
from benchmarks.resumable import Line, finished
from benchmarks.train_step import machine
from bertjax.config.export import WEIGHTS
from bertjax.config.opening import SavedModel
from bertjax.data import sources
from bertjax.data.text import sentences
from bertjax.models import vocabulary
from bertjax.runtime import command_line
from bertjax.runtime.errors import UserError

RESULTS = REPOSITORY / "benchmarks" / "results" / "minibert.jsonl"
SEEDS = (0, 1, 2)
TREEBANKS = {"English": "en_ewt", "Korean": "ko_gsd"}
# Sentences of each corpus for the teacher to tag, and the most characters of one.
UNLABELED, LONGEST = 8_000, 200
# Updates in which a student learns soft labels, or in which its baseline learns the tags once more.
STEPS = 1000


class Place(NamedTuple):
    """Where a cell finds what others made, and where it writes."""

    out: Path
    row: str
    seed: int

    @property
    def encoder(self) -> Path:
        return self.out / "encoder" / "export"

    @property
    def teacher(self) -> Path:
        return self.out / "teacher-0" / "tuned" / "export"

    @property
    def folder(self) -> Path:
        return self.out / f"{self.row}-{self.seed}"


def _tuned(place: Place, start: Path, *flags: str, to: str = "tuned") -> Command:
    """Return the command that trains on the tags of both treebanks."""
    return trained(
        "configs/finetune/tags.py",
        place.folder / to,
        place.seed,
        f"--config.init_from={start}",
        f"--config.tasks.tags.examples.train={place.out}/data/train.conllu",
        f"--config.tasks.tags.examples.heldout={place.out}/data/heldout.conllu",
        # The recipe is for an encoder of BERT's size; a narrow one takes a higher rate, and more epochs.
        "--config.optimizer.learning_rate=3e-4",
        "--config.stages.0.epochs=10",
        *flags,
    )


def _teacher(place: Place) -> list[Command]:
    return [_tuned(place, place.encoder)]


def _three_layers(place: Place) -> list[Command]:
    return [_tuned(place, place.encoder, *cut(THREE))]


def _twice(place: Place, *flags: str) -> list[Command]:
    steps = ["--config.stages.0.epochs=0", f"--config.stages.0.steps={STEPS}"]
    first = _tuned(place, place.encoder, *cut(THREE), *steps, *flags, to="first")
    return [first, _tuned(place, place.folder / "first" / "export")]


def _minibert(place: Place) -> list[Command]:
    losses = {"soft": {"kind": "logits"}}
    objective = {"kind": "distilled", "objective": {"kind": "tagging"}, "teacher": str(place.teacher)}
    return _twice(
        place,
        f"--config.tasks.tags.objective={objective | {'losses': losses, 'own_factor': 0.0}}",
        f"--config.tasks.tags.examples.unlabeled={place.out}/data/unlabeled.txt",
    )


# {row: (what it is, the commands that make its model)}
ROWS: dict[str, tuple[str, Callable[[Place], list[Command]]]] = {
    "teacher": ("six layers", _teacher),
    "three-layers": ("three of them", _three_layers),
    "three-layers-twice": ("as many updates as `minibert`", _twice),
    "minibert": ("MiniBERT (Tsai et al., 2019)", _minibert),
}


def pretraining(out: Path, english: str, korean: str) -> Command:
    """Return the command that trains the encoder."""
    corpora = {"english": english, "korean": korean}
    flags = [f"--config.data.sources.{name}.corpus={corpus}" for name, corpus in corpora.items()]
    return trained("benchmarks/minibert_config.py", out / "encoder", 0, *flags)


def fingerprint(row: str, seed: int, corpora: list[str]) -> str:
    """Return a hash of the commands that make a model and its teacher, and of what they read."""
    place = Place(Path("OUT"), row, seed)
    encoder = get_config().to_dict(), [Path(corpus).name for corpus in corpora], UNLABELED, LONGEST
    made_of = [*encoder, _teacher(Place(place.out, "teacher", 0)), ROWS[row][1](place)]
    return resumable.fingerprint(made_of)


def missing(lines: list[Line], corpora: list[str], rows: str = "") -> list[tuple[str, int]]:
    """Return the rows and seeds that have no line with the commands of today, seed 0 first.

    Raises:
      UserError: a name of `rows`, separated by commas, is unknown.
    """
    wanted = resumable.chosen(rows, ROWS, "--rows")
    done = {(line["row"], line["seed"], line["commands"]) for line in lines}
    cells = [(row, seed) for seed in SEEDS for row in ROWS if row in wanted]
    return [cell for cell in cells if (*cell, fingerprint(*cell, corpora)) not in done]


def write_data(data: Path, corpora: list[str], folder: Path) -> None:
    """Write the treebanks of both languages as one, and sentences of the corpora, their words between spaces.

    Raises:
      UserError: a corpus has too few sentences.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for split, name in (("train", "train"), ("heldout", "dev")):
        files = [data / "ud" / f"{bank}.{name}.conllu.gz" for bank in TREEBANKS.values()]
        parts = [gzip.decompress(path.read_bytes()).rstrip() for path in files]
        (folder / f"{split}.conllu").write_bytes(b"".join(part + b"\n\n" for part in parts))
    drawn: list[str] = []
    for corpus in corpora:
        texts = (document.text for document in sources.documents(corpus, "text"))
        split = itertools.chain.from_iterable(sentences.split(text, "punctuation") for text in texts)
        short = [sentence for sentence in split if len(sentence) <= LONGEST]
        if len(short) < UNLABELED:
            raise UserError(
                f"{corpus} has {len(short)} sentences of at most {LONGEST} characters, and {UNLABELED} are needed; "
                "name a larger corpus"
            )
        drawn += random.Random(0).sample(short, UNLABELED)
    words = [" ".join(re.findall(r"\w+|[^\w\s]", sentence)) for sentence in drawn]
    (folder / "unlabeled.txt").write_text("\n".join(words) + "\n", encoding="utf-8")


def run_cells(cells: list[tuple[str, int]], args: argparse.Namespace) -> None:
    """Run rows and seeds, each of which becomes a line.

    Raises:
      RunFailed: the encoder, the teacher or cells have failed.
    """
    out = args.out.resolve()
    corpora = [args.english, args.korean]
    write_data(args.data, corpora, out / "data")
    _make(out / "encoder" / "export", [pretraining(out, *corpora)])
    teacher = Place(out, "teacher", 0)
    _make(teacher.teacher, _teacher(teacher))

    def line_of(cell: tuple[str, int]) -> Line:
        row, seed = cell
        place = Place(out, row, seed)
        model = place.folder / "tuned" / "export"
        _make(model, ROWS[row][1](place))
        scores = {}
        for language, bank in TREEBANKS.items():
            heldout = f"--corpus={args.data.resolve()}/ud/{bank}.dev.conllu.gz"
            figures = json_of("bertjax.evaluate", str(model), heldout, "--json", "--platform=cpu", folder=out / "data")
            scores[language] = {name: figures[name] for name in ("eval", "baseline")}
        taken = json_of("benchmarks.arms.latency", str(place.teacher), str(model))
        export = SavedModel(str(model)).export
        return {
            "row": row,
            "seed": seed,
            "commands": fingerprint(row, seed, corpora),
            "corpora": [Path(corpus).name for corpus in corpora],
            "scores": scores,
            "parameters": vocabulary.count_parameters(export.params, export.encoder),
            "bytes": (model / WEIGHTS).stat().st_size,
            "teacher_milliseconds": taken[str(place.teacher)],
            "milliseconds": taken[str(model)],
            "machine": machine(),
        }

    def clean(cell: tuple[str, int]) -> None:
        if cell != ("teacher", 0):
            shutil.rmtree(Place(out, *cell).folder)

    resumable.run({f"{row}-{seed}": (row, seed) for row, seed in cells}, args.results, line_of, clean)


def _make(model: Path, commands: list[Command]) -> None:
    """Run the commands that make a model, unless it is there."""
    if not (model / WEIGHTS).exists():
        for command in commands:
            call(*command)


def markdown(lines: list[Line]) -> str:
    """Return the table of the latest line of each row and seed; rows without lines are absent.

    Raises:
      UserError: `lines` is empty.
    """
    if not lines:
        raise UserError("no cell has finished; run the command without --markdown first")
    latest = {(line["row"], line["seed"]): line for line in lines}
    baselines = {language: lines[-1]["scores"][language]["baseline"] for language in TREEBANKS}
    columns = [f"{name} (majority {100 * of['majority_accuracy']:.1f})" for name, of in baselines.items()]
    names = ["row", "what it is", *columns, "parameters", "ms at 1", "ms at 32"]
    table = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row, (what, _) in ROWS.items():
        if of_row := [line for (name, _), line in sorted(latest.items()) if name == row]:
            scores = {language: [line["scores"][language]["eval"] for line in of_row] for language in TREEBANKS}
            cells = [spread([score["token_accuracy"] for score in of_seeds]) for of_seeds in scores.values()]
            cells.append(f"{of_row[0]['parameters'] / 1e6:.1f} M")
            for size in ("batch_1", "batch_32"):
                taken = [(line["milliseconds"][size], line["teacher_milliseconds"][size]) for line in of_row]
                cells.append(latency(taken))
            table.append(f"| {' | '.join([f'`{row}`', what, *cells])} |")
    return "\n".join(table)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = command_line.ArgumentParser(
        prog="python -m benchmarks.minibert",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--data", type=Path, help="folder with the treebanks")
    parser.add_argument("--english", default="embedded:en", help="corpus (default: %(default)s)")
    parser.add_argument("--korean", default="embedded:ko", help="corpus (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs/minibert"), help="models (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the lines (default: %(default)s)")
    parser.add_argument("--rows", default="", help="names of rows, separated by commas (default: all)")
    parser.add_argument("--markdown", action="store_true", help="print the table of the finished cells")
    args = parser.parse_args(argv)
    lines = finished(args.results)
    if args.markdown:
        print(markdown(lines))
    elif args.data is None:
        raise UserError("--data is missing; name the folder with the treebanks, see --help")
    elif not (args.data / "ud").is_dir():
        raise UserError(f"--data={args.data} has no folder ud; see --help")
    else:
        run_cells(missing(lines, [args.english, args.korean], args.rows), args)
    return 0


if __name__ == "__main__":
    sys.exit(command_line.exit_code_of(main))
