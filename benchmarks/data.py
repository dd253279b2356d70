"""The data pipeline on one core: the share of real tokens in rows, and the speed of batches, packing and plans.

    python -m benchmarks.data --corpus=FILE_OR_FOLDER

Batches of each masking take turns with transformers' `DataCollatorForLanguageModeling` in one process, `--rounds`
times. The collator is skipped if transformers is not installed; `peers/bin/python -m benchmarks.data` runs the
benchmark with another interpreter. A ratio is always taken within one round. Both turn token ids into a masked batch.
transformers starts from rows in memory; bertjax starts from the token store on disk, and its batch also contains the
positions and pair labels.
"""

import argparse
import dataclasses
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.train_step import machine
from bertjax.config.config import Config, Task
from bertjax.data.config import DataConfig
from bertjax.data.formats import FORMATS
from bertjax.data.formats import KINDS as TEXT_FORMATS
from bertjax.data.masking import MASKINGS
from bertjax.data.packing import assign, pack
from bertjax.data.pipeline import Feed
from bertjax.data.plan import Spec, open_or_make
from bertjax.data.preparation.prepare import prepare
from bertjax.data.store import TokenStore
from bertjax.objectives.pretraining.mlm import MaskedLM
from bertjax.runtime.command_line import exit_code_of
from bertjax.training.feeds import Feeds

ROWS, SEQ_LEN = 256, 128
BATCHES = 8  # as many rows as `order.BLOCK`, so that every round computes one block of the order
ARM_DISTANCE = 1_000_000  # rows between the arms, so that no arm uses the cached row order of another
PACKED = (1_000_000, 16_000_000)


def seconds(action: Callable[[], object]) -> float:
    """Return the wall time of an action in seconds."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def real_shares(store: TokenStore) -> None:
    """Print the share of real tokens of every example format, packed and unpacked."""
    print("\nshare of the positions that hold tokens\nformat                 T   packed   alone     N   lost  repeated")
    for kind in TEXT_FORMATS:
        for seq_len in (128, 512):
            packed, alone = (
                open_or_make(store, Spec("train", FORMATS.class_of(kind)(), seq_len, 0, row_examples)).counts
                for row_examples in (0, 1)
            )
            lost, repeated = (n / packed.split_tokens for n in (packed.lost_tokens, packed.repeated_tokens))
            print(
                f"{kind:20} {seq_len:3}   {packed.real_share(seq_len):6.2%}  {alone.real_share(seq_len):6.2%}"
                f"   {packed.slots:3}  {lost:5.1%}    {repeated:5.1%}"
            )


def batches(store: TokenStore, rounds: int) -> None:
    """Print real tokens/s of batches with each masking, and the ratio to transformers' collator."""
    arms: dict[str, Callable[[int], object]] = {}
    for kind in MASKINGS.kinds:
        if kind != "phrases":  # it needs a lexicon, and then works like `words`
            feed, first = _feed(store, kind), len(arms) * ARM_DISTANCE
            arms[kind] = lambda number, feed=feed, first=first: feed.batch(first + number * ROWS + np.arange(ROWS))
    tokens = {name: _feed(store, name).plans[0].counts.real_share(SEQ_LEN) * ROWS * SEQ_LEN for name in arms}
    for name, collate in _collators(store).items():
        arms[name], tokens[name] = collate, ROWS * SEQ_LEN
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds):
        for name, make in arms.items():
            make(number)  # not timed: the caches hold another arm's data
            taken = seconds(lambda make=make, number=number: [make(number * BATCHES + b) for b in range(BATCHES)])
            rates[name].append(BATCHES * tokens[name] / taken)
    print(f"\nmasked batches of {ROWS} x {SEQ_LEN}, one process, {rounds} rounds")
    print("arm                   tokens/s      rows/s")
    for name, rate in rates.items():
        median = statistics.median(rate)
        print(f"{name:18} {median:11,.0f} {median * ROWS / tokens[name]:11,.0f}", end="")
        for peer in rates:
            if peer.startswith("collator"):
                ratios = [ours / theirs for ours, theirs in zip(rate, rates[peer], strict=True)]
                print(f"   {statistics.median(ratios):5.1f} ({min(ratios):.1f}-{max(ratios):.1f}) x {peer}", end="")
        print()


def _feed(store: TokenStore, masking: str) -> Feed:
    task = Task(objective=MaskedLM(MASKINGS.class_of(masking)()), examples=FORMATS.class_of("full_sentences")())
    return Feeds(Config(tasks={"mlm": task}), store).feed("train", SEQ_LEN)


def _collators(store: TokenStore) -> dict[str, Callable[[int], object]]:
    try:
        from transformers import BertTokenizer, DataCollatorForLanguageModeling
    except ImportError:
        print("\ntransformers is absent: no collator to compare with")
        return {}
    names = [f"w{i}" for i in range(store.tokenizer.vocab_size - 5)]
    vocabulary = Path(store.path) / "benchmark-vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *names]) + "\n")
    tokenizer = BertTokenizer(str(vocabulary))
    vocabulary.unlink()
    source = store.split("train").tokens
    cut = np.asarray(source[: len(source) // SEQ_LEN * SEQ_LEN]).reshape(-1, SEQ_LEN)
    collators = {}
    for tensors in ("np", "pt"):
        try:
            collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, return_tensors=tensors)
            rows = [{"input_ids": row.tolist()} for row in cut[: ROWS * 64]]
            collator(rows[:2])
        except ImportError as error:
            print(f"\ncollator ({tensors}) is absent: {str(error).splitlines()[0]}")
            continue

        def collate(number, collator=collator, rows=rows):
            start = number * ROWS % (len(rows) - ROWS)
            return collator(rows[start : start + ROWS])

        collators[f"collator-{tensors}"] = collate
    return collators


def packing() -> None:
    """Print the time of histogram packing and the peak memory of the process."""
    print(
        "\npacking lengths like those of sentence pairs, T=512\nexamples          seconds   real tokens   peak memory"
    )
    for count in PACKED:
        lengths = np.clip(np.random.default_rng(0).gamma(3, 27, count), 11, 512).astype(np.int32)
        rows = []

        def run(lengths=lengths, rows=rows):
            patterns = pack(np.bincount(lengths, minlength=513), 32)
            rows.append(assign(lengths, patterns, max(pattern.examples for pattern in patterns)))

        taken = seconds(run)
        share = lengths.sum(dtype=np.int64) / (len(rows[0]) * 512)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{count:12,} {taken:11.2f}   {share:11.2%}   {peak:8.2f} GiB")


def far_start(store: TokenStore) -> None:
    """Print the time of the first batch at step 0 and at step 1,000,000."""
    feed = _feed(store, "tokens")
    feed.batch(np.arange(ROWS))
    print("\nfirst batch at step       seconds")
    for step in (0, 1_000_000):
        # Each batch is at another place, since the order of the rows near a place is cached.
        firsts = (step + 100 * np.arange(10)) * ROWS
        taken = min(seconds(lambda first=first: feed.batch(first + np.arange(ROWS))) for first in firsts)
        print(f"{step:19,} {taken:13.4f}")


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default=DataConfig().corpus, help="as data.corpus (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(argv)
    print(f"machine: {machine()}")
    store = prepare(dataclasses.replace(DataConfig(), corpus=args.corpus))
    packing()
    real_shares(store)
    far_start(store)
    batches(store, args.rounds)


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
