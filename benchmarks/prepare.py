"""Preparing a corpus compared with its tokenizer: speed per core, peak memory, bytes on disk, and what options cost.

    python -m benchmarks.prepare --out=prepare.jsonl
    python -m benchmarks.prepare --corpus=books.jsonl.gz --sizes=8,80 --kind=wordpiece --out=prepare.jsonl
    python -m benchmarks.prepare --out=prepare.jsonl --markdown

A corpus that is too small is repeated; each copy has an additional line, so that it is another document. Speed is
characters per second of processor time (user and system) of one process. The arms of a round take turns:

- `bare`: only `Tokenizer.encode` on the sentences of the corpus.
- `prepare`: all of `prepare`, with a trained tokenizer.
- `near`: the same, with near-duplicates dropped.
- `kept`: the same as `prepare`, with the kept shards of the first nine tenths of the text.

`trained` is `prepare` once more, with the training of its tokenizer. Every measurement is a line of --out, and the
table is that of all lines with the same text and tokenizer.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.train_step import machine
from bertjax.data import sources, tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.data.preparation.sample import Sample
from bertjax.data.preparation.steps import digest
from bertjax.runtime.command_line import exit_code_of
from bertjax.runtime.errors import RunFailed

_REPOSITORY = Path(__file__).resolve().parents[1]
_HEADER = (
    "tokenizer",
    "text",
    "`prepare`",
    "bare tokenizer",
    "share (low to high)",
    "near-duplicates",
    "kept shards",
    "peak memory",
    "with training",
    "disk/text",
)


def write_corpus(corpus: str, size: int, path: Path) -> None:
    """Write `size` bytes of a corpus's text as JSON lines."""
    written = 0
    with open(path, "w", encoding="utf-8") as file:
        for copy in itertools.count():
            for document in sources.documents(corpus, "text"):
                text = document.text + (f"\n{copy}" if copy else "")
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                written += len(text.encode())
                if written >= size:
                    return


def write_beginning(path: Path, share: float, beginning: Path) -> None:
    """Write the first documents of a corpus, a share of its bytes."""
    left = share * path.stat().st_size
    with open(path, encoding="utf-8") as lines, open(beginning, "w", encoding="utf-8") as file:
        for line in lines:
            file.write(line)
            left -= len(line.encode())
            if left <= 0:
                return


def train(path: Path, folder: Path, kind: str) -> None:
    """Train the tokenizer of both arms."""
    config = TokenizerConfig(kind=kind)
    sample = Sample(config.sample_characters)
    for index, document in enumerate(sources.documents(str(path), "text")):
        sample.add(index, digest(document.text), document.text)
    folder.mkdir()
    tokenizer.train(sample.sentences("punctuation"), config).save(folder)


def measure(arm: str, *arguments: Path | str) -> dict:
    """Run one arm in a process of its own and return its measurements.

    Raises:
      RunFailed: the process failed.
    """
    command = [sys.executable, "-m", "benchmarks.arms.preparing", arm, *map(str, arguments)]
    done = subprocess.run(command, cwd=_REPOSITORY, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RunFailed(f"arm {arm} ended with code {done.returncode}; its output is above")
    return json.loads(done.stdout)


def measurements(corpus: str, size: int, kind: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a line of each arm of each round, on `size` MB of text."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        text, model = folder / "text.jsonl", folder / "tokenizer"
        write_corpus(corpus, size * 1_000_000, text)
        beginning = folder / "beginning" / text.name  # documents are named by their file
        beginning.parent.mkdir()
        write_beginning(text, 0.9, beginning)
        train(text, model, kind)
        common = {"corpus": Path(corpus).name, "mb": size, "kind": kind, "machine": machine()}
        for turn in range(rounds):
            stores, kept = folder / f"stores-{turn}", folder / f"kept-{turn}"
            kept.mkdir()
            measure("prepare", beginning, model, stores / "beginning", kept)
            for arm, arguments in (
                ("bare", (text, model, "")),
                ("prepare", (text, model, stores / "prepare")),
                ("near", (text, model, stores / "near")),
                ("kept", (text, model, stores / "kept", kept)),
            ):
                name = "prepare" if arm == "kept" else arm
                yield common | {"round": turn, "arm": arm} | measure(name, *arguments)
        yield common | {"round": 0, "arm": "trained"} | measure("prepare", text, "", folder / "trained")


def markdown(lines: Iterable[dict[str, Any]]) -> str:
    """Return the table of measurements: medians over the rounds, and ratios within a round."""
    groups: dict[tuple, dict[str, list[dict]]] = {}
    for line in lines:
        key = line["kind"], line["mb"]
        groups.setdefault(key, {}).setdefault(line["arm"], []).append(line)
    rows = [_HEADER, ("---",) * len(_HEADER)]
    for (kind, size), arms in groups.items():
        seconds = {arm: [line["seconds"] for line in of_arm] for arm, of_arm in arms.items()}
        characters = arms["bare"][0]["characters"]
        rows.append(
            (
                f"`{kind}`",
                f"{size} MB",
                *(f"{characters / statistics.median(seconds[arm]) / 1e6:.1f} M/s" for arm in ("prepare", "bare")),
                _ratios(seconds["bare"], seconds["prepare"], "{:.0%}"),
                _ratios(seconds["near"], seconds["prepare"], "{:.2f}"),
                _ratios(seconds["prepare"], seconds["kept"], "{:.2f}"),
                f"{max(line['peak'] for line in arms['prepare']) / 1e6:.0f} MB",
                f"{arms['trained'][0]['peak'] / 1e6:.0f} MB",
                f"{arms['prepare'][0]['disk']:.2f}",
            )
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _ratios(above: list[float], below: list[float], form: str) -> str:
    """Return the median, the lowest and the highest of the ratios of the rounds."""
    ratios = [x / y for x, y in zip(above, below, strict=True)]
    return "{} ({} to {})".format(*(form.format(of(ratios)) for of in (statistics.median, min, max)))


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="embedded:en")
    parser.add_argument("--sizes", default="8,80", help="MB of text, separated by commas (default: %(default)s)")
    parser.add_argument("--kind", default=TokenizerConfig.kind, help="data.tokenizer.kind (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines; new ones are appended")
    parser.add_argument("--markdown", action="store_true", help="only print the table of --out")
    args = parser.parse_args(argv)
    if not args.markdown:
        with open(args.out, "a", encoding="utf-8") as file:
            for size in map(int, args.sizes.split(",")):
                for line in measurements(args.corpus, size, args.kind, args.rounds):
                    print(json.dumps(line), file=file, flush=True)
    print(markdown(map(json.loads, args.out.read_text(encoding="utf-8").splitlines())))


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
