"""Slots after two steps on several simulated devices; prints, as JSON, how they differ from those on one device."""

import json
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

from tests import batches
from tests.objectives.test_what_objectives_may_do import after, write_mylab

# Tokens of a micro-batch, strategy and devices.
CASES = {
    "replicated": (0, "replicated", 8),
    "fsdp": (0, "fsdp", 8),
    "fsdp, two micro-batches a device": (32, "fsdp", 2),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_mylab(Path(folder))
        sys.path.insert(0, folder)
        steps = batches.make(seed=0), batches.make(seed=1)
        expected = after(0, *steps)[-1]["slots"]["mine"]
        results = {}
        for name, (micro_tokens, strategy, devices) in CASES.items():
            slots = after(micro_tokens, *steps, devices=devices, strategy=strategy)[-1]["slots"]["mine"]
            gaps = jax.tree.map(lambda one, other: float(np.abs(one - other).max()), expected, slots)
            results[name] = {"queue": gaps["queue"], "teacher": max(jax.tree.leaves(gaps["teacher"]))}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
