"""What large corpora cost: bytes read for random rows of a cold store, one very long line, and many small documents.

    python -m benchmarks.cold_reads --out=cold_reads.jsonl
    python -m benchmarks.cold_reads --arms=rows --gb=3 --rows=2048 --out=cold_reads.jsonl
    python -m benchmarks.cold_reads --out=cold_reads.jsonl --markdown

Arms, each in a process of its own, so that its counters are its own:

- `rows`: batches of 256 random rows of a store of --gb gigabytes that is not in the page cache, read as training reads
  them (`Feed.batch`). A row of `doc_sentences` or `full_sentences` without packing is at three places: in rows, ranges
  and tokens. A row of `segment_pairs` has two segments, often from two documents, and room for short examples beside.
  Bytes are those that
  the kernel fetched from the disk for this process (Linux, `read_bytes` of /proc/self/io). The same again without
  `store.at_random`.
- `planning`: the plan of a block of sentences, and of the same block with one line of 1 MB without a full stop; seconds
  of processor time and their ratio.
- `documents`: the first pass of --mb megabytes in documents of 150 bytes, in several files, with one process and with
  two; seconds of the clock.

The text is made up, and its tokens are random. Every measurement is a line of --out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.train_step import machine
from bertjax.data import plan, store, tokenizer
from bertjax.data.batch import Draw, PlacedExamples
from bertjax.data.config import DataConfig, TokenizerConfig
from bertjax.data.examples import Vocabulary
from bertjax.data.formats.doc_sentences import DocSentences
from bertjax.data.formats.full_sentences import FullSentences
from bertjax.data.formats.segment_pairs import SegmentPairs
from bertjax.data.order import Epochs, Turns
from bertjax.data.pipeline import Feed
from bertjax.data.plan import Spec
from bertjax.data.preparation.local import Local
from bertjax.data.store import COUNTS, SPLITS, SplitWriter, TokenStore
from bertjax.runtime.command_line import exit_code_of
from bertjax.runtime.errors import RunFailed

_REPOSITORY = Path(__file__).resolve().parents[1]
ARMS = "rows", "planning", "documents"
SEQ_LEN, BATCH = 128, 256
SENTENCE_TOKENS, DOCUMENT_SENTENCES, VOCABULARY = 20, 20, 64
SHARD_SENTENCES = 1 << 16
# The line of 1 MB: words of four letters and a space.
LONG_LINE_TOKENS = 200_000
PLANNED_SENTENCES = 380_000


def write_store(folder: Path, sentences: int, long_line: int = 0) -> TokenStore:
    """Write a store with random tokens; the two splits of it are alike, and the held-out one is small.

    Args:
      sentences: sentences of the training split.
      long_line: tokens of one more sentence, in the middle.
    """
    rng = np.random.default_rng(0)
    trained = tokenizer.train(
        ["abcdefghijklmnop"], TokenizerConfig(kind="char", vocab_size=VOCABULARY, byte_fallback=False)
    )
    (folder / "tokenizer").mkdir(parents=True)
    trained.save(folder / "tokenizer")
    counts = {}
    for split in SPLITS:
        writer, documents, left = SplitWriter(folder, split), 0, sentences if split == "train" else 200
        is_first = split == "train" and bool(long_line)
        while left > 0:
            lengths = np.full(min(left, SHARD_SENTENCES), SENTENCE_TOKENS)
            left -= len(lengths)
            if is_first:
                lengths[len(lengths) // 2] = long_line
                is_first = False
            document_lengths = np.full(-(-len(lengths) // DOCUMENT_SENTENCES), DOCUMENT_SENTENCES)
            document_lengths[-1] -= document_lengths.sum() - len(lengths)
            documents += len(document_lengths)
            writer.append(rng.integers(4, trained.vocab_size, lengths.sum(), np.uint16), lengths, document_lengths)
        writer.close()
        counts[split] = {"corpus": dict.fromkeys(COUNTS, 0) | {"documents": documents}}
    contents = {"counts": counts, "duplicates": {"corpus": 0}, "skipped": {"corpus": 0}, "longest": []}
    store.write_manifest(folder, {}, trained, contents)
    return TokenStore(folder, json.loads((folder / store.MANIFEST).read_text()))


FORMATS = {
    "doc_sentences": Spec("train", DocSentences(), SEQ_LEN, seed=0, row_examples=1),
    "full_sentences": Spec("train", FullSentences(), SEQ_LEN, seed=0, row_examples=1),
    "segment_pairs": Spec("train", SegmentPairs(), SEQ_LEN, seed=0),
}


def no_features(placed: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
    """Add nothing to a batch."""
    return {}


def drop_from_cache(folder: Path) -> None:
    """Ask the kernel to forget the pages of all files of a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fetched() -> int:
    """Return the bytes that the kernel has fetched from disks for this process."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def read_rows(folder: str, kind: str, rows: str, advice: str) -> dict[str, Any]:
    """Read random rows of a cold store."""
    if advice == "no":
        from bertjax.data.formats import stored

        stored.at_random = plan.at_random = np.asarray
    made = TokenStore(Path(folder), json.loads((Path(folder) / store.MANIFEST).read_text()))
    planned = plan.open_or_make(made, FORMATS[kind])
    feed = Feed(
        (Epochs((planned,), "rows", seed=0, shuffle=True),),
        Turns((1.0,)),
        no_features,
        Vocabulary.of(made.tokenizer),
        SEQ_LEN,
    )
    drop_from_cache(Path(folder))
    before, start = fetched(), time.perf_counter()
    for first in range(0, int(rows), BATCH):
        feed.batch(np.arange(first, min(first + BATCH, int(rows))))
    return {"bytes": fetched() - before, "seconds": time.perf_counter() - start}


def time_planning(folder: str) -> dict[str, Any]:
    """Time the blocks of a plan."""
    split = TokenStore(Path(folder), json.loads((Path(folder) / store.MANIFEST).read_text())).split("train")
    start = time.process_time()
    for _ in SegmentPairs().blocks(split, SEQ_LEN, 0):
        pass
    return {"seconds": time.process_time() - start}


def write_documents(folder: Path, megabytes: int, files: int) -> int:
    """Write documents of about 150 bytes as JSON lines, and return their number."""
    rng, number = np.random.default_rng(0), 0
    words = ["".join(rng.choice(list("abcdefghij"), 4)) for _ in range(2000)]
    folder.mkdir()
    for index in range(files):
        with open(folder / f"{index:03}.jsonl", "w", encoding="utf-8") as file:
            written = 0
            while written < megabytes * 1_000_000 / files:
                number += 1
                text = f"{number} " + " ".join(words[i] for i in rng.integers(0, 2000, 29)) + "."
                file.write(json.dumps({"text": text}) + "\n")
                written += len(text)
    return number


def time_first_pass(corpus: str, folder: str, processes: str) -> dict[str, Any]:
    """Time the first pass."""
    config = DataConfig(corpus=corpus, workers=int(processes))
    partial = Path(folder)
    (partial / "store").mkdir(parents=True)
    start = time.perf_counter()
    Local().read(config, partial)
    return {"seconds": time.perf_counter() - start}


def run(arm: str, *arguments: str) -> None:
    """Print the measurements of an arm as JSON, in a process of its own."""
    function = {"rows": read_rows, "planning": time_planning, "documents": time_first_pass}[arm]
    print(json.dumps(function(*arguments)))


def measure(arm: str, *arguments: Path | str | int) -> dict[str, Any]:
    """Run one arm in a process of its own and return its measurements.

    Raises:
      RunFailed: the process failed.
    """
    code = "import sys; from benchmarks import cold_reads; cold_reads.run(*sys.argv[1:])"
    command = [sys.executable, "-c", code, arm, *map(str, arguments)]
    done = subprocess.run(command, cwd=_REPOSITORY, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RunFailed(f"arm {arm} ended with code {done.returncode}; its output is above")
    return json.loads(done.stdout.splitlines()[-1])


def measurements(
    arms: list[str], gigabytes: float, rows: int, megabytes: int, rounds: int, folder: Path
) -> Iterator[dict[str, Any]]:
    """Yield a line of each measurement."""
    common = {"machine": machine()}
    if "rows" in arms:
        # Tokens of two bytes, and eight bytes of offsets a sentence.
        made = write_store(folder / "rows", int(gigabytes * 1e9 / (2 * SENTENCE_TOKENS + 8)))
        for kind, spec in FORMATS.items():
            plan.open_or_make(made, spec)
            for advice in ("yes", "no"):
                settings = {"arm": "rows", "format": kind, "advice": advice, "gb": gigabytes, "rows": rows}
                yield common | settings | measure("rows", folder / "rows", kind, rows, advice)
    if "planning" in arms:
        for turn in range(rounds):
            for name, tokens in (("without", 0), ("with", LONG_LINE_TOKENS)):
                place = folder / f"planning-{name}"
                if not place.exists():
                    write_store(place, PLANNED_SENTENCES, tokens)
                yield common | {"arm": "planning", "long_line": name, "round": turn} | measure("planning", place)
    if "documents" in arms:
        number = write_documents(folder / "documents", megabytes, files=4)
        for turn in range(rounds):
            for processes in (0, 2):
                settings = {"arm": "documents", "mb": megabytes, "documents": number, "processes": max(1, processes)}
                place = folder / f"partial-{turn}-{processes}"
                yield common | settings | {"round": turn} | measure("documents", folder / "documents", place, processes)


def markdown(lines: list[dict[str, Any]]) -> str:
    """Return the table of measurements."""
    rows = [("what", "measured"), ("---", "---")]
    for line in lines:
        if line["arm"] == "rows":
            what = (
                f"{line['rows']:,} random rows of `{line['format']}`, a cold store of {line['gb']:g} GB, advice: "
                f"{line['advice']}"
            )
            rows.append((what, f"{line['bytes'] / 1e6:,.1f} MB, {line['seconds']:.2f} s"))
        elif line["arm"] == "planning":
            rows.append((f"planning a block {line['long_line']} a line of 1 MB", f"{line['seconds']:.2f} s"))
        else:
            each = line["seconds"] / line["documents"] * 1e6
            what = f"first pass of {line['mb']} MB in {line['documents']:,} documents, {line['processes']} process(es)"
            rows.append((what, f"{line['seconds']:.1f} s, {each:.1f} us a document"))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", default=",".join(ARMS), help="separated by commas (default: %(default)s)")
    parser.add_argument("--gb", type=float, default=3.0, help="size of the store (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=2048, help="rows that are read (default: %(default)s)")
    parser.add_argument("--mb", type=int, default=80, help="text of the first pass (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of the other arms (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="a folder on a disk, for the files (default: a temporary one)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines; new ones are appended")
    parser.add_argument("--markdown", action="store_true", help="only print the table of --out")
    args = parser.parse_args(argv)
    if not args.markdown:
        with (
            tempfile.TemporaryDirectory(dir=args.folder) as folder,
            open(args.out, "a", encoding="utf-8") as file,
        ):
            for line in measurements(args.arms.split(","), args.gb, args.rows, args.mb, args.rounds, Path(folder)):
                print(json.dumps(line), file=file, flush=True)
    print(markdown([json.loads(line) for line in args.out.read_text(encoding="utf-8").splitlines()]))


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
