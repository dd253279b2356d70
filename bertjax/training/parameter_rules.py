"""Optimizer rules for parameters selected by path: layer-wise decay, multipliers, freezing.

Stacked layers share one path and one array, so factors for single layers vary along its first axis.
"""

import dataclasses
import difflib
import functools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bertjax.runtime.errors import UserError
from bertjax.training.config import Multiplier, matches_any
from bertjax.training.param_paths import map_with_path, matches, path_of

IS_STACKED = matches(r"(^|/)layers/")
# Anchored: the layers of ELECTRA's generator (`generator/encoder/...`) are not the encoder's.
IS_ENCODER_LAYER = matches(r"^((lora|scores)/)?encoder/layers/")
# Prefix of a param's path in an optimizer state.
_IN_STATE = re.compile(r"^.*?(^|/)(mu|nu|count)/")
IS_EMBEDDING = matches(r"(^|/)(embeddings|projection)/")


@dataclasses.dataclass(frozen=True)
class Freezing:
    """Parameters that do not change, in the whole run or in some steps.

    A step holds a parameter together with its moments and step count. If only some of them changed, Adam's bias
    correction would use the wrong step.

    Attributes:
      patterns: regular expressions for paths that are frozen in the whole run; these parameters have no moments.
      paths: parameters that the stage freezes, or that the step's task does not train.
      layers: number of lowest encoder layers that the stage also freezes. Parameters that several layers share are
        frozen if all of these layers are.
      depth: L, the encoder's depth.
    """

    patterns: tuple[str, ...] = ()
    paths: frozenset[str] = frozenset()
    layers: int = 0
    depth: int = 0

    def without_gradient(self, params: dict, is_adapted: Callable[[str], bool]) -> dict:
        """Stop the gradients of frozen params, so that the compiler drops their part of the backward pass."""

        def stopped(path: str, leaf: jax.Array) -> jax.Array:
            # Kernels with LoRA keep their gradient, because the factors' gradients are computed from it.
            is_frozen = (matches_any(self.patterns, path) or path in self.paths) and not is_adapted(path)
            return jax.lax.stop_gradient(leaf) if is_frozen else leaf

        return map_with_path(stopped, params)

    def hold(self, new: Any, old: Any) -> Any:
        """Return `new`, with the leaves (or rows of leaves) that the step does not train replaced from `old`.

        Args:
          new, old: trees shaped like the params or like an optimizer state, where paths end with a param's path.
        """
        if not self.paths and not self.layers:
            return new

        def choose(key_path: tuple, new: jax.Array, old: jax.Array) -> jax.Array:
            path = _IN_STATE.sub("", path_of(key_path))  # moments and counts of a param are held with it
            if path in self.paths:
                return old
            if self.layers and IS_ENCODER_LAYER(path):
                rows = new.shape[0]
                last_layers = (1 + jnp.arange(rows)) * (self.depth // rows)  # number of the last layer that uses a row
                return jnp.where((last_layers <= self.layers).reshape(-1, *[1] * (new.ndim - 1)), old, new)
            return new

        return jax.tree_util.tree_map_with_path(choose, new, old)


def by_depth(decay: float, offset: int = 1) -> optax.GradientTransformation:
    """Scale updates by decay^(L + offset - depth): depth 0 for embeddings, 1 to L for layers; heads are not scaled.

    L is the size of the stack. Parameters that several layers share have the depth of the last one.
    """

    def update(updates: dict, state: optax.EmptyState, params: dict) -> tuple[dict, optax.EmptyState]:
        # Parameters that layers share have a shorter stack, so the longest one shows the depth.
        layers = max(leaf.shape[0] for path, leaf in _leaves(params).items() if IS_STACKED(path))

        def scaled(path: str, update: jax.Array) -> jax.Array:
            if IS_STACKED(path):
                rows = update.shape[0]
                last_layers = (1 + jnp.arange(rows)) * (layers // rows)
                factors = decay ** (layers + offset - last_layers)
                return update * factors.reshape(-1, *[1] * (update.ndim - 1))
            return update * decay ** (layers + offset) if IS_EMBEDDING(path) else update

        return map_with_path(scaled, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def by_multiplier(multipliers: Sequence[Multiplier]) -> optax.GradientTransformation:
    """Scale updates by the first multiplier with a matching path."""

    def factor_of(path: str, ndim: int) -> jax.Array | float:
        multiplier = next((entry for entry in multipliers if re.search(entry.path, path)), Multiplier())
        if not multiplier.by_layer:
            return multiplier.factor
        return multiplier.factor * jnp.array(multiplier.by_layer).reshape(-1, *[1] * (ndim - 1))

    def check(params: dict) -> None:
        layers = {path: leaf.shape[0] for path, leaf in _leaves(params).items() if IS_STACKED(path)}
        for index, multiplier in enumerate(multipliers):
            name = f"optimizer.multipliers.{index}"
            paths = find_paths(f"{name}.path", multiplier.path, params)
            for path in paths if multiplier.by_layer else []:
                if layers.get(path) != len(multiplier.by_layer):
                    has = f"has {layers[path]} layers" if path in layers else "is not stacked by layers"
                    raise UserError(
                        f"{name}.by_layer has {len(multiplier.by_layer)} factors, but {path!r} {has}; give a "
                        "factor for each layer, and a path that matches layers only"
                    )

    return stateless(check, lambda path, update, _: update * factor_of(path, update.ndim))


def freeze(patterns: Sequence[str], trained: optax.GradientTransformation) -> optax.GradientTransformation:
    """Apply `trained` to the parameters that no pattern matches; the others get zero updates and no state."""
    is_frozen = functools.partial(matches_any, patterns)

    def frozen(params: dict) -> dict:
        return map_with_path(lambda path, _: is_frozen(path), params)

    def check(params: dict) -> None:
        for index, pattern in enumerate(patterns):
            find_paths(f"optimizer.frozen.{index}", pattern, params)
        if all(map(is_frozen, _leaves(params))):
            raise UserError(f"optimizer.frozen={list(patterns)} leaves no parameter to train; freeze fewer")

    masked = optax.masked(trained, lambda params: jax.tree.map(operator.not_, frozen(params)))
    # `masked` passes other gradients through unchanged, so they must be 0 for the parameters to stay frozen.
    zeroed = stateless(check, lambda path, gradient, _: jnp.zeros_like(gradient) if is_frozen(path) else gradient)
    return optax.chain(zeroed, masked)


def stateless(check: Callable[[dict], None], update: Callable) -> optax.GradientTransformation:
    """Return a transformation that maps update(path, update, param); `check` runs once, at initialization."""

    def init(params: dict) -> optax.EmptyState:
        check(params)
        return optax.EmptyState()

    def apply(updates: dict, state: optax.EmptyState, params: dict) -> tuple[dict, optax.EmptyState]:
        return jax.tree_util.tree_map_with_path(
            lambda key_path, *leaves: update(path_of(key_path), *leaves), updates, params
        ), state

    return optax.GradientTransformation(init, apply)


def _leaves(params: dict) -> dict[str, jax.Array]:
    return {path_of(key_path): leaf for key_path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def find_paths(name: str, pattern: str, params: dict) -> list[str]:
    """Return the parameter paths that match a pattern.

    Raises:
      UserError: no path matches.
    """
    paths = list(_leaves(params))
    if matching := [path for path in paths if re.search(pattern, path)]:
        return matching
    # cutoff=0.0: name some paths even if none is similar.
    near = difflib.get_close_matches(pattern, paths, n=3, cutoff=0.0)
    raise UserError(f"{name}={pattern!r} matches no parameter; the nearest paths are {', '.join(near)}")
