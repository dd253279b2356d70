"""Adam with optional bias correction and step counts per parameter, and Muon for the kernels of layers."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from bertjax.training.optim.by_path import IS_STACKED
from bertjax.training.param_paths import map_with_path, matches, path_of

# Smaller numbers are 0 to most devices.
_SMALLEST = float(jnp.finfo(jnp.float32).tiny)
# Not pruning scores, of which only the order matters. Embeddings and heads are matrices too, but their rows are updated
# by different tokens: Muon's authors leave them to Adam.
_IS_LAYER_KERNEL = matches(r"^(?!scores/).*(^|/)encoder/layers/.*kernel$")
# Jordan (2024) and Liu et al. (2025).
MOMENTUM = 0.95
# Root mean square of an update, as Adam's usually is (Liu et al., 2025, section 2.2), so that both take one rate.
RMS = 0.2


def scale_by_adam(
    b1: float, b2: float, epsilon: float, bias_correction: bool = True, counts_by_leaf: bool = False
) -> optax.GradientTransformation:
    """Return Adam (Kingma & Ba, 2015, arXiv 1412.6980, algorithm 1) as a transformation without a learning rate.

    Args:
      b1, b2: decay rates of the first and second moment.
      epsilon: constant added to the root of the second moment.
      bias_correction: False for BERT's published optimizer, which starts with larger steps.
      counts_by_leaf: keep a step count for each parameter, and for each layer in a stack. If some steps leave a
        parameter, its moments and its count unchanged, its updates equal those in a run without these steps.
    """
    by_optax = optax.scale_by_adam(b1=b1, b2=b2, eps=epsilon)
    if bias_correction and not counts_by_leaf:
        return by_optax  # optax's own code; the code below computes the same up to rounding

    def init(params: Any) -> optax.ScaleByAdamState:
        state = by_optax.init(params)
        return state._replace(count=map_with_path(_zero_count, params)) if counts_by_leaf else state

    def update(gradient: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        mu = optax.tree.update_moment(gradient, state.mu, b1, 1)
        nu = optax.tree.update_moment(gradient, state.nu, b2, 2)
        # `safe_increment` stops at the largest int32 instead of wrapping to a negative count.
        count = jax.tree.map(optax.safe_increment, state.count)

        def step(first: jax.Array, second: jax.Array, steps: jax.Array | None = None) -> jax.Array:
            # `steps` is a scalar, or [L, 1, ...] for a stack with a count for each layer.
            if steps is not None:
                # Moments start at 0, so early estimates are too small by the factor 1 - b^steps (section 3).
                first, second = first / (1 - b1**steps), second / (1 - b2**steps)
            return first / (jnp.sqrt(second) + epsilon)

        # A single count with bias correction has returned above: with correction, `count` is a tree like `mu` here.
        updates = jax.tree.map(step, mu, nu, *([count] if bias_correction else []))
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def by_update_size(optimizer: optax.GradientTransformation, b2: float, epsilon: float) -> optax.GradientTransformation:
    """Return StableAdamW (Wortsman et al., 2023, arXiv 2304.13013, algorithm 2), given AdamW without a learning rate.

    If the second moment lags behind a gradient that has become larger, Adam's update is too large. So each parameter's
    update, weight decay included, is divided by max(1, RMS), with RMS = sqrt(mean(gradient^2 / second moment)) over the
    parameter, or over one layer of a stack.

    Args:
      optimizer: a chain with one `scale_by_adam`.
      b2: its decay rate of the second moment.
      epsilon: its epsilon; the second moment counts as at least epsilon^2.
    """

    def update(gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(gradient, state, params)
        nu, count = optax.tree.get(state, "nu"), optax.tree.get(state, "count")
        counts = count if jax.tree.structure(count) == jax.tree.structure(nu) else jax.tree.map(lambda _: count, nu)

        def limited(key_path: tuple, update: jax.Array, gradient: jax.Array, nu: jax.Array, steps: jax.Array):
            second = jnp.maximum(nu / (1 - b2**steps), max(epsilon**2, _SMALLEST))
            axes = tuple(range(1, nu.ndim)) if IS_STACKED(path_of(key_path)) else None
            return update / jnp.maximum(1.0, jnp.sqrt(jnp.mean(gradient**2 / second, axis=axes, keepdims=True)))

        return jax.tree_util.tree_map_with_path(limited, updates, gradient, nu, counts), state

    return optax.GradientTransformation(optimizer.init, update)


def _zero_count(path: str, leaf: jax.Array) -> jax.Array:
    """Return a scalar 0, or zeros [L, 1, ...] for stacked layers, which broadcast over each layer's moments."""
    shape = (leaf.shape[0], *[1] * (leaf.ndim - 1)) if IS_STACKED(path) else ()
    return jnp.zeros(shape, jnp.int32)


def scale_by_muon(adam: optax.GradientTransformation, block: int = 0) -> optax.GradientTransformation:
    """Return Muon (Jordan, 2024, kellerjordan.github.io/posts/muon) as a transformation without a learning rate.

    Each layer's kernel [in, out] gets the momentum with its singular values set to about 1, times
    0.2 sqrt(max(in, out)) (Liu et al., 2025, arXiv 2502.16982, equation 4). Kernels are [L, in, out].

    Args:
      adam: optimizer of all other parameters.
      block: inner neurons that are orthogonalized together, if it divides them: columns of a kernel, or rows of one
        named `output`. 0 for whole kernels.
    """

    def rows_axis(path: str) -> int:
        """Axis of a block's rows: [L, in, blocks, size], or [L, blocks, size, out]."""
        return 2 if path.endswith("output/kernel") else 1

    def split(path: str, kernel: jax.Array) -> jax.Array:
        axis = 3 - rows_axis(path)
        count = kernel.shape[axis] // block if block and kernel.shape[axis] % block == 0 else 1
        return kernel.reshape(*kernel.shape[:axis], count, -1, *kernel.shape[axis + 1 :])

    def scaled(path: str, update: jax.Array) -> jax.Array:
        return update * RMS * max(update.shape[rows_axis(path)], update.shape[3]) ** 0.5

    def axes(kernels: dict) -> dict:
        # Muon sees kernels only; axes that are neither, here the layers and blocks, are batch axes.
        return map_with_path(lambda path, _: contrib.MuonDimensionNumbers(rows_axis(path), 3), kernels)

    muon = contrib.scale_by_muon(beta=MOMENTUM, weight_dimension_numbers=axes)

    def update(gradient: dict, state: Any, params: Any = None) -> tuple[dict, Any]:
        in_blocks = map_with_path(split, (gradient, state.mu))
        updates, new = muon.update(in_blocks[0], state._replace(mu=in_blocks[1]))
        whole = functools.partial(jax.tree.map, lambda leaf, like: leaf.reshape(like.shape))
        return whole(map_with_path(scaled, updates), gradient), new._replace(mu=whole(new.mu, gradient))

    blocks = optax.GradientTransformation(muon.init, update)
    return optax.partition({True: blocks, False: adam}, _is_layer_kernel)


def _is_layer_kernel(params: dict) -> dict:
    return map_with_path(lambda path, leaf: _IS_LAYER_KERNEL(path) and leaf.ndim == 3, params)
