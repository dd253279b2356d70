"""Compare the gradient of a batch on four simulated devices with that on one; print the largest differences as JSON."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.training.config import MeshConfig
from bertjax.training.step import gradients
from tests import batches
from tests.training.trainer import make_step

# {name: (layer type and embeddings, choices of the layout)}
LAYOUTS = {
    "replicated": ({}, {"mesh": MeshConfig(4, 1, 1), "strategy": "replicated"}),
    "gathered": ({}, {"mesh": MeshConfig(2, 2, 1), "strategy": "gathered"}),
    "gathered lstm": (batches.LSTM, {"mesh": MeshConfig(2, 2, 1), "strategy": "gathered"}),
}


def main() -> None:
    batch, differences, on_one = batches.make(), {}, {}
    for name, (parts, choices) in LAYOUTS.items():
        key = tuple(parts.values())
        if key not in on_one:
            on_one[key] = _on_one(parts, batch)
        params, expected = on_one[key]
        actual = _gradient(make_step(**parts, **choices), params, batch)
        differences[name] = _difference(actual, expected)
    # Three of twelve rows are padding: the four devices have nine rows.
    nine = {name: values[:9] for name, values in batches.make(rows=12).items()}
    params, expected = _on_one({}, nine)
    actual = _gradient(make_step(**LAYOUTS["replicated"][1]), params, {k: _filled_up(v, k) for k, v in nine.items()})
    differences["padded"] = _difference(actual, expected)
    print(json.dumps(differences))


def _filled_up(values: np.ndarray, name: str) -> np.ndarray:
    """Return nine rows with three rows of padding."""
    fill = -1 if name == "example_ids_BN" else 0
    return np.concatenate([values, np.full((3, *values.shape[1:]), fill, values.dtype)])


def _difference(actual: dict, expected: dict) -> float:
    """Return the largest difference as a share of the largest number."""
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
    return float(max(jax.tree.leaves(jax.tree.map(lambda a, b: np.abs(a - b).max(), actual, expected))) / largest)


def _on_one(parts: dict, batch: dict) -> tuple[dict, dict]:
    """Return params and their gradient on one device."""
    one = make_step(**parts)
    params = batches.filled(batches.param_shapes(one.loss.objective, one.loss.model.config, batch))
    return params, _gradient(one, params, batch)


def _gradient(parts, params: dict, batch: dict) -> dict:
    gradient, *_ = jax.jit(functools.partial(gradients, parts))(params, None, batch, jnp.int32(0))
    return jax.device_get(gradient)


if __name__ == "__main__":
    main()
