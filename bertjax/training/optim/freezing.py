"""Parameters that do not change: in a whole run, in a stage, or in the steps of other tasks."""

import dataclasses
import functools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bertjax.runtime.errors import UserError
from bertjax.training.config import Stage
from bertjax.training.optim.by_path import IS_EMBEDDING, IS_ENCODER_LAYER, find_paths, stateless
from bertjax.training.param_paths import leaves_of, map_with_path, matches_any, path_of

# What precedes the path of a param in that of its moment or count in an optimizer state.
_MOMENT = re.compile(r"^.*?(^|/)(mu|nu|count)/")


@dataclasses.dataclass(frozen=True)
class Freezing:
    """Parameters that do not change, in the whole run or in some steps.

    Such a parameter has no gradient, and is held together with its moments and step count: if only some of them
    changed, Adam's bias correction would use the wrong step.

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

    @property
    def is_used(self) -> bool:
        """Whether any parameter is frozen."""
        return bool(self.patterns or self.paths or self.layers)

    def without_gradient(self, params: dict) -> dict:
        """Stop the gradients of the trained params that do not change; the compiler drops what only they need."""

        def stopped(path: str, leaf: jax.Array) -> jax.Array:
            if matches_any(self.patterns, path) or path in self.paths:
                return jax.lax.stop_gradient(leaf)
            return self._chosen(path, leaf, jax.lax.stop_gradient(leaf))

        return map_with_path(stopped, params)

    def hold(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        """Wrap the optimizer of a run for steps in which `paths` and `layers` do not change.

        The gradients of these parameters must be 0, so that they do not count in the norm that clips.
        """
        if not self.paths and not self.layers:
            return optimizer

        def update(gradient: Any, state: Any, params: Any) -> tuple[Any, Any]:
            updates, new_state = optimizer.update(gradient, state, params)
            # An update that is not 0 in spite of a zero gradient, as from weight decay and momentum, is dropped, too.
            zeros = jax.tree.map(jnp.zeros_like, updates)
            return self._held(updates, zeros, str), self._held(new_state, state, functools.partial(_MOMENT.sub, ""))

        return optax.GradientTransformation(optimizer.init, update)

    def _held(self, new: Any, old: Any, param_of: Callable[[str], str]) -> Any:
        """Return `new` with the leaves, or rows of leaves, of held parameters from `old`.

        Args:
          new, old: trees shaped like the params or like an optimizer state.
          param_of: returns the path of the param that a path in these trees belongs to.
        """

        def choose(key_path: tuple, new: jax.Array, old: jax.Array) -> jax.Array:
            path = param_of(path_of(key_path))
            return old if path in self.paths else self._chosen(path, new, old)

        return jax.tree_util.tree_map_with_path(choose, new, old)

    def _chosen(self, path: str, new: jax.Array, old: jax.Array) -> jax.Array:
        """Return `new` with the rows of the lowest layers from `old`."""
        if not self.layers or not IS_ENCODER_LAYER(path):
            return new
        rows = new.shape[0]
        last_layers = (1 + jnp.arange(rows)) * (self.depth // rows)  # number of the last layer that uses a row
        return jnp.where((last_layers <= self.layers).reshape(-1, *[1] * (new.ndim - 1)), old, new)


def frozen_in_stage(index: int, stage: Stage, params: dict, patterns: tuple[str, ...], depth: int) -> Freezing:
    """Return the parameters that a run or one of its stages freezes.

    Args:
      index: the number of the stage, for messages.
      stage: its settings.
      params: all parameters, or their shapes.
      patterns: regular expressions for paths that the run freezes.
      depth: L, the encoder's depth in the stage.

    Raises:
      UserError: a pattern of the stage matches no parameter, or the stage leaves no parameter to train.
    """
    names = {f"stages.{index}.frozen.{number}": pattern for number, pattern in enumerate(stage.frozen)}
    paths, frozen = leaves_of(params), {path for item in names.items() for path in find_paths(*item, params)}
    if stage.frozen_layers:
        frozen |= set(filter(IS_EMBEDDING, paths))
    if stage.frozen_layers == depth:  # all rows of every stack
        frozen |= set(filter(IS_ENCODER_LAYER, paths))
    if not {path for path in paths if not matches_any(patterns, path)} - frozen:
        raise UserError(
            f"stages.{index}.frozen={list(stage.frozen)} with frozen_layers={stage.frozen_layers} leaves no parameter "
            "to train; freeze fewer"
        )
    return Freezing(patterns, frozenset(frozen), stage.frozen_layers, depth)


def freeze(patterns: Sequence[str], trained: optax.GradientTransformation) -> optax.GradientTransformation:
    """Apply `trained` to the parameters that no pattern matches; the others get zero updates and no state."""
    is_frozen = functools.partial(matches_any, patterns)

    def frozen(params: dict) -> dict:
        return map_with_path(lambda path, _: is_frozen(path), params)

    def check(params: dict) -> None:
        for index, pattern in enumerate(patterns):
            find_paths(f"optimizer.frozen.{index}", pattern, params)
        if all(map(is_frozen, leaves_of(params))):
            raise UserError(f"optimizer.frozen={list(patterns)} leaves no parameter to train; freeze fewer")

    masked = optax.masked(trained, lambda params: jax.tree.map(operator.not_, frozen(params)))
    # `masked` passes other gradients through unchanged, so they must be 0 for the parameters to stay frozen.
    zeroed = stateless(check, lambda path, gradient, _: jnp.zeros_like(gradient) if is_frozen(path) else gradient)
    return optax.chain(zeroed, masked)
