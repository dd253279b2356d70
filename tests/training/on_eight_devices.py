"""Train the same 20 steps on one and on eight simulated devices and prints, as JSON, how every strategy differs."""

import json

import jax
import numpy as np

from bertjax.training.config import MeshConfig
from bertjax.training.run.fingerprints import check_replicas
from tests import batches
from tests.training.trainer import STEPS, Trainer, make_step

REPLICAS, ALL, MIXED = MeshConfig(8, 1, 1), MeshConfig(1, 8, 1), MeshConfig(2, 2, 2)
LAYOUTS = {
    "replicated": {"mesh": REPLICAS, "strategy": "replicated"},
    "gathered": {"mesh": ALL, "strategy": "gathered"},
    "gathered, data x fsdp x tensor": {"mesh": MIXED, "strategy": "gathered"},
    "gathered, two micro-batches": {"mesh": MeshConfig(2, 2, 1), "strategy": "gathered", "micro_tokens": 16},
    "gathered, two micro-batches, dropout by hash": {
        "mesh": MeshConfig(2, 2, 1),
        "strategy": "gathered",
        "micro_tokens": 16,
        "attention": "fused",  # its rows are too short for the kernel, and draw as it does
    },
    "fsdp": {"mesh": ALL, "strategy": "fsdp"},
    "fsdp, data x fsdp x tensor, remat": {"mesh": MIXED, "strategy": "fsdp", "remat": "full"},
}


def main() -> None:
    steps = [batches.make(seed=seed) for seed in range(STEPS)]
    alone = {attention: Trainer(make_step(dropout=0.1, attention=attention)) for attention in ("plain", "fused")}
    metrics_alone = {attention: one.train(*steps) for attention, one in alone.items()}
    differences = {}
    for name, choices in LAYOUTS.items():
        one, expected = (found[choices.get("attention", "plain")] for found in (alone, metrics_alone))
        many = Trainer(make_step(dropout=0.1, **choices))
        metrics = many.train(*steps)
        check_replicas(many.state, STEPS)
        params = zip(jax.tree.leaves(many.params), jax.tree.leaves(one.params), strict=True)
        kernel = many.state["opt_state"][1].mu["encoder"]["layers"]["intermediate"]["kernel"]
        differences[name] = {
            "kernels": kernel.addressable_shards[0].data.size / kernel.size,
            "losses": max(float(np.max(np.abs(metrics[n] / expected[n] - 1))) for n in ("mlm_loss", "nsp_loss")),
            "params": max(float(np.max(np.abs(a - b))) for a, b in params),
        }
    print(json.dumps(differences))


if __name__ == "__main__":
    main()
