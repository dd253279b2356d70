"""Preparing a corpus compared with its tokenizer: speed per core, peak memory at 8 and 80 MB of text, bytes on disk.

    python -m benchmarks.prepare
    python -m benchmarks.prepare --corpus=books.jsonl.gz --sizes=8,80 --kind=wordpiece

A corpus that is too small is repeated; each copy has an additional line, so that it is another document. Speed is
characters per second of processor time (user and system) of one process. It is measured for `prepare` with a trained
tokenizer, and for only `Tokenizer.encode` on the same sentences. The last column is the time of `prepare` without kept
shards, relative to that with the shards of the first nine tenths of the text. The arms take turns.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bertjax.cli import exit_code_of
from bertjax.data import sources, tokenizer
from bertjax.data.config import TokenizerConfig
from bertjax.data.preparation.sample import Sample
from bertjax.data.preparation.steps import digest
from bertjax.errors import RunFailed

_REPOSITORY = Path(__file__).resolve().parents[1]


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


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="embedded:en")
    parser.add_argument("--sizes", default="8,80", help="MB of text, separated by commas")
    parser.add_argument("--kind", default=TokenizerConfig.kind, help="data.tokenizer.kind (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    header = (
        "text",
        "prepare",
        "bare",
        "share (low to high)",
        "peak",
        "with training",
        "disk/text",
        "grown by a tenth",
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for size in map(int, args.sizes.split(",")):
            corpus, model = folder / f"{size}.jsonl", folder / f"tokenizer-{size}"
            write_corpus(args.corpus, size * 1_000_000, corpus)
            beginning = folder / f"{size}-beginning" / corpus.name  # documents are named by their file
            beginning.parent.mkdir()
            write_beginning(corpus, 0.9, beginning)
            train(corpus, model, args.kind)
            rates, peaks, gains = {"bare": [], "prepare": []}, [], []
            for turn in range(args.rounds):
                alone = measure("bare", corpus, model, "")
                whole = measure("prepare", corpus, model, folder / f"{size}-{turn}")
                rates["bare"].append(alone["characters"] / alone["seconds"])
                rates["prepare"].append(alone["characters"] / whole["seconds"])
                peaks.append(whole["peak"])
                kept = folder / f"{size}-{turn}-kept"
                kept.mkdir()
                measure("prepare", beginning, model, folder / f"{size}-{turn}-first", kept)
                grown = measure("prepare", corpus, model, folder / f"{size}-{turn}-grown", kept)
                gains.append(whole["seconds"] / grown["seconds"])
            trained = measure("prepare", corpus, "", folder / f"{size}-trained")
            shares = [ours / bare for ours, bare in zip(rates["prepare"], rates["bare"], strict=True)]
            rows.append(
                (
                    f"{size} MB",
                    *(f"{statistics.median(rates[arm]) / 1e6:.1f} M/s" for arm in ("prepare", "bare")),
                    f"{statistics.median(shares):.0%} ({min(shares):.0%} to {max(shares):.0%})",
                    f"{max(peaks) / 1e6:.0f} MB",
                    f"{trained['peak'] / 1e6:.0f} MB",
                    f"{whole['disk']:.2f}",
                    f"{statistics.median(gains):.2f} ({min(gains):.2f} to {max(gains):.2f})",
                )
            )
    for row in (header, *rows):
        print("{:>8}{:>12}{:>12}{:>24}{:>10}{:>15}{:>11}{:>23}".format(*row))


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
