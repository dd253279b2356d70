"""The largest eigenvalue of the Hessian of a loss with respect to the kernels of one layer, by power iteration.

The Hessian is never formed: its product with a vector v is the derivative of the gradient in the direction v
(Pearlmutter, 1994). The gradient is linearized once for all products of a batch.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.models.config import EncoderConfig
from bertjax.models.model import Model
from bertjax.objectives.base import Arrays, Objective

# The iteration ends when the eigenvalue changes by less than this share of it, or after so many products.
TOLERANCE, MOST_PRODUCTS = 1e-3, 100


@functools.lru_cache(maxsize=8)
def function_of(objective: Objective, encoder: EncoderConfig) -> Callable[..., jax.Array]:
    """Return `top_eigenvalue`, jitted, for the models of one architecture and task."""
    return jax.jit(functools.partial(top_eigenvalue, objective, objective.model(encoder)))


def top_eigenvalue(
    objective: Objective, model: Model, params: dict, frozen: dict | None, batch: Arrays, layer: jax.Array
) -> jax.Array:
    """Device: return the eigenvalue of largest magnitude, float32 [].

    Args:
      objective: the objective whose loss it is, the mean over the batch, without dropout.
      model: its model.
      params: its params; layers have params of their own.
      frozen: those of `Objective.frozen_params`.
      batch: the core batch and the features.
      layer: int, the layer, counted from 0.
    """
    flat = flatten_dict(params, sep="/")
    kernels = {path: leaf for path, leaf in flat.items() if is_kernel_of_layers(path)}

    def loss(kernels: dict) -> jax.Array:
        values = unflatten_dict(flat | kernels, sep="/")
        sums, _ = objective.terms(model, values, frozen, batch, jax.random.key(0), False)
        weights = objective.weights(batch)
        return sum(objective.coefficients.get(term, 1.0) * total / weights[term] for term, total in sums.items())

    _, product = jax.linearize(jax.grad(loss), kernels)

    def of_layer(tree: dict) -> dict:
        return {path: jnp.zeros_like(leaf).at[layer].set(leaf[layer]) for path, leaf in tree.items()}

    def normal(tree: dict) -> dict:
        norm = jnp.sqrt(_dot(tree, tree))
        return jax.tree.map(lambda leaf: leaf / jnp.where(norm > 0, norm, 1.0), tree)

    def step(state: tuple) -> tuple:
        vector, value, _, count = state
        image = of_layer(product(vector))
        return normal(image), _dot(vector, image), value, count + 1

    def goes_on(state: tuple) -> jax.Array:
        _, value, before, count = state
        return (count < 2) | ((jnp.abs(value - before) > TOLERANCE * jnp.abs(value)) & (count < MOST_PRODUCTS))

    keys = jax.random.split(jax.random.key(0), len(kernels))
    start = {path: jax.random.normal(key, leaf.shape) for key, (path, leaf) in zip(keys, kernels.items(), strict=True)}
    first = normal(of_layer(start)), jnp.float32(0), jnp.float32(0), 0
    return jax.lax.while_loop(goes_on, step, first)[1]


def is_kernel_of_layers(path: str) -> bool:
    """Return whether a param is a kernel of the encoder's layers, [L, ...]."""
    return path.startswith("encoder/layers/") and path.endswith("/kernel")


def _dot(a: dict, b: dict) -> jax.Array:
    return sum(jnp.vdot(a[path], b[path]) for path in a)
