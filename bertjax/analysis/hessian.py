"""Largest Hessian eigenvalue for one layer's kernels, by power iteration on the loss.

The Hessian is never formed. Its product with a vector v is the gradient's derivative in direction v (Pearlmutter,
1994). The gradient is linearized once per batch and reused by all products.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.models.config import EncoderConfig
from bertjax.models.model import Model
from bertjax.objectives.base import Arrays, Objective
from bertjax.training.loss import normalized, total_loss

# The iteration ends if the eigenvalue changes by less than this fraction, or after this many products.
TOLERANCE, MOST_PRODUCTS = 1e-3, 100


@functools.lru_cache(maxsize=8)
def function_of(objective: Objective, encoder: EncoderConfig) -> Callable[..., jax.Array]:
    """Return jitted `top_eigenvalue`, shared by all models of one architecture and task."""
    return jax.jit(functools.partial(top_eigenvalue, objective, objective.model(encoder)))


def top_eigenvalue(
    objective: Objective,
    model: Model,
    params: dict,
    frozen: dict | None,
    batch: Arrays,
    layer: jax.Array,
    train_step: jax.Array,
) -> jax.Array:
    """Device: return the eigenvalue of largest magnitude, float32 [].

    Args:
      objective: defines the loss, a mean over the batch without dropout.
      model: its Linen module.
      params: model parameters; layers must not share them.
      frozen: result of `Objective.frozen_params`.
      batch: the core batch and the features.
      layer: int, counted from 0.
      train_step: training step of the loss weights.
    """
    flat = flatten_dict(params, sep="/")
    kernels = {path: leaf for path, leaf in flat.items() if is_kernel_of_layers(path)}

    def loss(kernels: dict) -> jax.Array:
        values = unflatten_dict(flat | kernels, sep="/")
        sums, _ = objective.terms(model, values, frozen, batch, jax.random.key(0), False)
        return total_loss(objective, normalized(sums, objective.weights(batch)), train_step)

    # Forward over reverse: `product(v)` is the Hessian-vector product, without another forward pass.
    _, product = jax.linearize(jax.grad(loss), kernels)

    # Parameters are stacked on L. Restricting vectors to one row restricts the Hessian to that layer's block.
    def of_layer(tree: dict) -> dict:
        return {path: jnp.zeros_like(leaf).at[layer].set(leaf[layer]) for path, leaf in tree.items()}

    def normal(tree: dict) -> dict:
        norm = jnp.sqrt(_dot(tree, tree))
        return jax.tree.map(lambda leaf: leaf / jnp.where(norm > 0, norm, 1.0), tree)

    def step(state: tuple) -> tuple:
        vector, value, _, count = state
        image = of_layer(product(vector))
        # The Rayleigh quotient v^T H v of a unit vector keeps the sign, which the norm of H v would lose.
        return normal(image), _dot(vector, image), value, count + 1

    def goes_on(state: tuple) -> jax.Array:
        _, value, before, count = state
        # At least two products: the first value has no predecessor.
        return (count < 2) | ((jnp.abs(value - before) > TOLERANCE * jnp.abs(value)) & (count < MOST_PRODUCTS))

    keys = jax.random.split(jax.random.key(0), len(kernels))
    start = {path: jax.random.normal(key, leaf.shape) for key, (path, leaf) in zip(keys, kernels.items(), strict=True)}
    first = normal(of_layer(start)), jnp.float32(0), jnp.float32(0), 0
    return jax.lax.while_loop(goes_on, step, first)[1]


def is_kernel_of_layers(path: str) -> bool:
    """Return whether a parameter path is a kernel of the encoder's layers, [L, ...]."""
    return path.startswith("encoder/layers/") and path.endswith("/kernel")


def _dot(a: dict, b: dict) -> jax.Array:
    return sum(jnp.vdot(a[path], b[path]) for path in a)
