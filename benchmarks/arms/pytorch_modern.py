"""transformers' `ModernBertForMaskedLM` on PyTorch, with its head at masked positions only (`sparse_prediction`).

With `--products`, it computes matrix products alone, as many operations as the other arms say that a step has.
"""

import argparse
import json
import math
from collections.abc import Callable

from benchmarks.arms import pytorch, worker
from benchmarks.arms.setting import PRODUCT_WIDTH, PRODUCTS, Setting


def build(setting: Setting, compiled: bool) -> Callable[[], float]:
    """Return a function that trains one step on the setting's batch and returns the loss.

    Raises:
      ModuleNotFoundError: PyTorch or transformers is not installed.
    """
    import torch
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    torch.manual_seed(0)
    config = ModernBertConfig(
        vocab_size=setting.vocab_size,
        hidden_size=setting.width,
        num_hidden_layers=setting.layers,
        num_attention_heads=setting.heads,
        intermediate_size=setting.feedforward,
        max_position_embeddings=setting.max_positions,
        sparse_prediction=True,
        attn_implementation="sdpa",
    )
    batch = {
        "input_ids": torch.from_numpy(setting.inputs()["tokens_BT"]),
        "attention_mask": torch.ones(setting.batch, setting.seq_len, dtype=torch.long),
        "labels": torch.from_numpy(setting.labels_BT(absent=-100)),
    }
    return pytorch.step_of(ModernBertForMaskedLM(config), batch, setting, compiled)


def products(flops: float) -> Callable[[], float]:
    """Return a function that computes matrix products of as many operations; its loss is not a number."""
    import torch

    rows = max(round(flops / (2 * PRODUCT_WIDTH * PRODUCT_WIDTH * PRODUCTS)), 1)
    left, right = torch.ones(rows, PRODUCT_WIDTH), torch.ones(PRODUCT_WIDTH, PRODUCT_WIDTH)

    def step() -> float:
        for _ in range(PRODUCTS):
            left @ right
        return math.nan

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("setting", type=json.loads)
    parser.add_argument("--compiled", action="store_true", help="use torch.compile")
    parser.add_argument("--products", type=float, metavar="FLOPS", help="compute products of as many operations")
    args = parser.parse_args()
    setting = Setting(**args.setting)
    make = (lambda: products(args.products)) if args.products else (lambda: build(setting, args.compiled))
    worker.serve(make, ("torch", "transformers"))


if __name__ == "__main__":
    main()
