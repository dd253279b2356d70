"""Adam's moments, with a bias correction that can be switched off and counted separately for each parameter."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bertjax.training.param_paths import map_with_path
from bertjax.training.parameter_rules import IS_STACKED


def scale_by_adam(
    b1: float, b2: float, epsilon: float, bias_correction: bool = True, counts_by_leaf: bool = False
) -> optax.GradientTransformation:
    """Return the transformation of Adam (Kingma & Ba, 2015, arXiv 1412.6980, algorithm 1) without its learning rate.

    Args:
      b1, b2: decays of the moments.
      epsilon: constant that is added to the root of the second moment.
      bias_correction: False for the update of BERT's published optimizer, which starts with larger steps.
      counts_by_leaf: whether each parameter, and each layer of a stack, has its own count of steps. A parameter that
        some steps do not train, and whose moments and count they keep, is then updated as in a run of its own steps.
    """
    published = optax.scale_by_adam(b1=b1, b2=b2, eps=epsilon)
    if bias_correction and not counts_by_leaf:
        return published  # what follows computes the same but for the last bits

    def init(params: Any) -> optax.ScaleByAdamState:
        state = published.init(params)
        return state._replace(count=map_with_path(_zero_count, params)) if counts_by_leaf else state

    def update(gradient: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        mu = optax.tree.update_moment(gradient, state.mu, b1, 1)
        nu = optax.tree.update_moment(gradient, state.nu, b2, 2)
        count = jax.tree.map(optax.safe_increment, state.count)

        def step(first: jax.Array, second: jax.Array, steps: jax.Array | None = None) -> jax.Array:
            if steps is not None:
                first, second = first / (1 - b1**steps), second / (1 - b2**steps)
            return first / (jnp.sqrt(second) + epsilon)

        updates = jax.tree.map(step, mu, nu, *([count] if bias_correction else []))
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def _zero_count(path: str, leaf: jax.Array) -> jax.Array:
    """Return 0, or [L, 1, ...] zeros for stacked layers."""
    shape = (leaf.shape[0], *[1] * (leaf.ndim - 1)) if IS_STACKED(path) else ()
    return jnp.zeros(shape, jnp.int32)
