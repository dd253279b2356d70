"""Trains the same 20 steps on meshes of one and of eight simulated devices and prints, as JSON, how they differ."""

import json

import jax
import numpy as np

from bertjax.training.config import MeshConfig
from bertjax.training.sharding import make_mesh
from tests import batches
from tests.training.small import STEPS, Trainer, context

# A micro-batch draws a dropout of its own, so there the comparison is without any.
MESHES = {
    "data=8": (MeshConfig(), context(dropout=0.1), context(dropout=0.1)),
    "data=2 fsdp=2 tensor=2": (MeshConfig(2, 2, 2), context(dropout=0.1), context(dropout=0.1)),
    "fsdp=4 tensor=2, two micro-batches": (MeshConfig(1, 4, 2), context(micro_batches=2), context()),
}


def main() -> None:
    steps = [batches.make(seed=seed) for seed in range(STEPS)]
    found = {}
    for name, (mesh, on_many, on_one) in MESHES.items():
        many, one = Trainer(on_many, make_mesh(mesh)), Trainer(on_one)
        metrics, expected = many.train(*steps), one.train(*steps)
        params = zip(jax.tree.leaves(many.params), jax.tree.leaves(one.params), strict=True)
        found[name] = {
            "devices": len(many.state["params"]["encoder"]["embeddings"]["word"].sharding.device_set),
            "losses": max(float(np.max(np.abs(metrics[n] / expected[n] - 1))) for n in ("mlm_loss", "nsp_loss")),
            "params": max(float(np.max(np.abs(a - b))) for a, b in params),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
