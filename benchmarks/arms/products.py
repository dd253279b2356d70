"""Matrix products alone, as many operations as a step of bertjax has: the least time that a step can take.

The products are [rows, 1024] x [1024, 1024] in float32, a shape at which XLA is as fast as at any other that was tried.
"""

import argparse
import json
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from benchmarks.arms import ours, worker
from benchmarks.arms.setting import PRODUCT_WIDTH, PRODUCTS, Setting
from bertjax.runtime import platform
from bertjax.training.stage_flops import StepFlops


def flops_of(setting: Setting) -> float:
    """Return the operations of a step by the formula that training counts with."""
    batches = {name: array[None] for name, array in ours.batch(setting).items()}
    parts = ours.objective(setting).flops_parts(ours.encoder(setting, unroll=True))
    return StepFlops(parts).executed(batches)


def build(setting: Setting) -> Callable[[], float]:
    """Return a function that computes the products of one step; its loss is not a number."""
    rows = round(flops_of(setting) / (2 * PRODUCT_WIDTH**2 * PRODUCTS))
    left, right = jnp.ones((max(rows, 1), PRODUCT_WIDTH)), jnp.ones((PRODUCT_WIDTH, PRODUCT_WIDTH))
    product = jax.jit(jnp.matmul)

    def step() -> float:
        for _ in range(PRODUCTS):
            product(left, right).block_until_ready()
        return math.nan

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("setting", type=json.loads)
    args = parser.parse_args()
    platform.restart_with_huge_pages("cpu")
    platform.configure("cpu")
    worker.serve(lambda: build(Setting(**args.setting)), ("jax", "jaxlib"))


if __name__ == "__main__":
    main()
