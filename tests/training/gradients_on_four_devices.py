"""Compare the gradient of a batch on four simulated devices with that on one; print the largest differences as JSON."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.training.config import MeshConfig
from bertjax.training.step import gradients
from tests import batches
from tests.training.trainer import context

LAYOUTS = {
    "replicated": {"mesh": MeshConfig(4, 1, 1), "strategy": "replicated"},
    "gathered": {"mesh": MeshConfig(2, 2, 1), "strategy": "gathered"},
}


def main() -> None:
    batch, one = batches.make(), context()
    params = batches.filled(batches.param_shapes(one.objective, one.model.config, batch))
    expected = _gradient(one, params, batch)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    differences = {}
    for name, choices in LAYOUTS.items():
        actual = _gradient(context(**choices), params, batch)
        by_leaf = jax.tree.map(lambda a, b: np.abs(a - b).max() / largest, actual, expected)
        differences[name] = float(max(jax.tree.leaves(by_leaf)))
    print(json.dumps(differences))


def _gradient(parts, params: dict, batch: dict) -> dict:
    gradient, *_ = jax.jit(functools.partial(gradients, parts))(params, None, batch, jnp.int32(0))
    return jax.device_get(gradient)


if __name__ == "__main__":
    main()
