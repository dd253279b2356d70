"""Optimizer rules for some of the parameters, which they select by path: decay by depth, multipliers, freezing.

Stacked layers share one path and one array, so what differs between layers varies along its first axis.
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

from bertjax.errors import UserError
from bertjax.training.config import Multiplier, matches_any
from bertjax.training.param_paths import map_with_path, matches, path_of

IS_STACKED = matches(r"(^|/)layers/")
IS_ENCODER_LAYER = matches(r"^((lora|scores)/)?encoder/layers/")
# What comes before the path of a param in the state of an optimizer.
_IN_STATE = re.compile(r"^.*?(^|/)(mu|nu|count)/")
IS_EMBEDDING = matches(r"(^|/)(embeddings|projection)/")


@dataclasses.dataclass(frozen=True)
class Freezing:
    """The parameters that do not change: in the whole run, or in some of its steps.

    In those steps one rule holds for a parameter, its moments and its count of steps: if only some of them moved on,
    Adam's bias correction would be that of another step.

    Attributes:
      patterns: regular expressions on the paths of parameters that the run freezes; they have no moments.
      paths: paths of parameters that a stage freezes, or that the task of the step does not train.
      layers: number of the lowest layers of the encoder that the stage also freezes. A row that several layers share is
        frozen if all of them are.
      depth: L, the number of layers of the encoder.
    """

    patterns: tuple[str, ...] = ()
    paths: frozenset[str] = frozenset()
    layers: int = 0
    depth: int = 0

    def without_gradient(self, params: dict, is_adapted: Callable[[str], bool]) -> dict:
        """Return the params with a gradient of 0 for frozen ones, so that no backward pass is computed for them.

        Adapted kernels keep theirs: the gradients of their factors follow from it (`bertjax.training.lora`).
        """

        def stopped(path: str, leaf: jax.Array) -> jax.Array:
            is_frozen = (matches_any(self.patterns, path) or path in self.paths) and not is_adapted(path)
            return jax.lax.stop_gradient(leaf) if is_frozen else leaf

        return map_with_path(stopped, params)

    def hold(self, new: Any, old: Any) -> Any:
        """Return a tree with the leaves of `new`, and those of `old` for what the step does not train.

        Args:
          new, old: trees like the params, or like the state of an optimizer, whose paths end with those of params.
        """
        if not self.paths and not self.layers:
            return new

        def choose(key_path: tuple, new: jax.Array, old: jax.Array) -> jax.Array:
            path = _IN_STATE.sub("", path_of(key_path))
            if path in self.paths:
                return old
            if self.layers and IS_ENCODER_LAYER(path):
                rows = new.shape[0]
                last_layers = (1 + jnp.arange(rows)) * (self.depth // rows)
                return jnp.where((last_layers <= self.layers).reshape(-1, *[1] * (new.ndim - 1)), old, new)
            return new

        return jax.tree_util.tree_map_with_path(choose, new, old)


def by_depth(decay: float, offset: int = 1) -> optax.GradientTransformation:
    """Scale updates by decay^(L + offset - depth): depth 0 for the embeddings, 1 to L for the layers; not the heads.

    L counts the layers of the stack. A row of parameters that several layers share has the depth of the last of them.
    """

    def update(updates: dict, state: optax.EmptyState, params: dict) -> tuple[dict, optax.EmptyState]:
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
    """Scale updates by the first multiplier that matches their path."""

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
    """Apply `trained` to parameters that no pattern matches; the others get updates of 0."""
    is_frozen = functools.partial(matches_any, patterns)

    def frozen(params: dict) -> dict:
        return map_with_path(lambda path, _: is_frozen(path), params)

    def check(params: dict) -> None:
        for index, pattern in enumerate(patterns):
            find_paths(f"optimizer.frozen.{index}", pattern, params)
        if all(map(is_frozen, _leaves(params))):
            raise UserError(f"optimizer.frozen={list(patterns)} leaves no parameter to train; freeze fewer")

    masked = optax.masked(trained, lambda params: jax.tree.map(operator.not_, frozen(params)))
    zeroed = stateless(check, lambda path, gradient, _: jnp.zeros_like(gradient) if is_frozen(path) else gradient)
    return optax.chain(zeroed, masked)


def stateless(check: Callable[[dict], None], update: Callable) -> optax.GradientTransformation:
    """Update each leaf by update(path, update, param); `check` runs once, when the state is initialized."""

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
    """Return the paths that match a pattern.

    Raises:
      UserError: no path matches.
    """
    paths = list(_leaves(params))
    if matching := [path for path in paths if re.search(pattern, path)]:
        return matching
    near = difflib.get_close_matches(pattern, paths, n=3, cutoff=0.0)
    raise UserError(f"{name}={pattern!r} matches no parameter; the nearest paths are {', '.join(near)}")
