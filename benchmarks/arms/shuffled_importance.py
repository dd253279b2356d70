"""Write an cut.json in random order, by which heads and neurons are cut at random.

    python -m benchmarks.arms.shuffled_importance MODEL IMPORTANCE SHUFFLED SEED

IMPORTANCE is the file that `bertjax analyze --parts=importance` wrote for MODEL, an export.
"""

import dataclasses
import os
import sys
from pathlib import Path

import numpy as np

from bertjax.config.opening import SavedModel
from bertjax.models import cut
from bertjax.models.config import EncoderConfig


def shuffle(source: os.PathLike, target: os.PathLike, encoder: EncoderConfig, seed: int) -> None:
    """Write the file of an encoder with the numbers of each layer in random order."""
    read, draw = cut.read_importance(source, encoder), np.random.default_rng(seed)
    heads, neurons = (draw.permuted(numbers, axis=1) for numbers in (read.heads, read.neurons))
    Path(target).write_bytes(dataclasses.replace(read, heads=heads, neurons=neurons).to_json())


def main(argv: list[str]) -> None:
    """The command line."""
    model, source, target, seed = argv
    shuffle(source, target, SavedModel(model).export.encoder, int(seed))


if __name__ == "__main__":
    main(sys.argv[1:])
