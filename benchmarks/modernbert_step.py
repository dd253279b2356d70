"""Tokens/s of training ModernBERT-base on a CPU: bertjax's own step against transformers 5.

    python -m benchmarks.modernbert_step --torch-python=OTHER_VENV/bin/python \
        --out=benchmarks/results/modernbert_step.jsonl

Both sides train full rows of 1,024 tokens in float32 with AdamW, predict 30% of the tokens (ModernBERT's rate), and
compute the vocabulary product at these positions only. An arm `products` of each side multiplies matrices with as many
operations as a step has: how long it takes, as a share of the step, is the share that is matrix products at full speed.
The arms take turns as in `benchmarks/train_step.py`.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from benchmarks import train_step
from benchmarks.arms import products
from benchmarks.arms.setting import Setting
from benchmarks.train_step import Arm
from bertjax.models.presets import PRESETS
from bertjax.runtime.command_line import exit_code_of

PRESET, LENGTH, ROWS, PREDICTED = "modernbert_base", 1024, 2, 307
_OURS, _OUR_PRODUCTS, _THEIR_PRODUCTS = "bertjax", "products", "pytorch-products"
_WHOLE_ROWS = "without attention in parts"


def setting_of(preset: str, rows: int) -> Setting:
    """Return the setting of a preset, with ModernBERT's vocabulary."""
    encoder = PRESETS[preset]
    return Setting(
        preset=preset,
        layers=encoder.layers,
        width=encoder.width,
        heads=encoder.heads,
        feedforward=encoder.feedforward,
        max_positions=encoder.max_positions,
        vocab_size=50_368,
        batch=rows,
        seq_len=LENGTH,
        predicted=PREDICTED,
        dropout=0.0,
        attention_dropout=0.0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default=PRESET, choices=[name for name in PRESETS if name.startswith("modernbert")])
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of a batch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--torch-python", default=sys.executable, help="interpreter with torch and transformers 5")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    setting = setting_of(args.preset, args.rows)
    flops = products.flops_of(setting)
    arms = {
        _OURS: Arm("ours"),
        _WHOLE_ROWS: Arm("ours", ("--without=long-rows",)),
        _OUR_PRODUCTS: Arm("products"),
        "pytorch-eager": Arm("pytorch_modern"),
        "pytorch-compiled": Arm("pytorch_modern", ("--compiled",)),
        _THEIR_PRODUCTS: Arm("pytorch_modern", (f"--products={flops}",)),
    }
    workers, answers = train_step.start(arms, args.torch_python, setting)
    rates = train_step.measure(workers, setting, 1, args.rounds)
    for worker in workers:
        worker.close()
    results = train_step.compare(rates)
    train_step.print_table(results, {name: answer["loss"] for name, answer in answers.items()})
    medians = {name: result["tokens_per_second"]["median"] for name, result in results.items()}
    shares = {
        name: rate / medians[_OUR_PRODUCTS if name in (_OURS, _WHOLE_ROWS) else _THEIR_PRODUCTS]
        for name, rate in medians.items()
        if not name.endswith("products")
    }
    for name, share in shares.items():
        print(f"{name}: {share:.0%} of the step is matrix products")
    line = {"setting": dataclasses.asdict(setting), "flops": flops, "machine": train_step.machine()}
    line |= {"arms": answers, "results": results, "share_of_products": shares}
    with args.out.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
