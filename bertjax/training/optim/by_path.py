"""Parameters selected by path, and factors on their updates: layer-wise decay and multipliers.

Stacked layers share one path and one array, so factors for single layers vary along its first axis.
"""

import difflib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import optax

from bertjax.runtime.errors import UserError
from bertjax.training.optim.config import Multiplier
from bertjax.training.param_paths import leaves_of, map_with_path, matches, matches_any, path_of

# Only encoders stack their layers: a head may have submodules that are called so.
IS_STACKED = matches(r"(^|/)encoder/layers/")
# Anchored: the layers of ELECTRA's generator (`generator/encoder/...`) are not the encoder's.
IS_ENCODER_LAYER = matches(r"^((lora|scores)/)?encoder/layers/")
# Tables from states to words that are not the word embeddings. By path they train as tied decoders do, so whether a
# model has one changes neither what LoRA and `frozen_layers` freeze nor which rate it has with `layer_decay`.
DECODER = r"(^|/)heads/(.+/)?word(_rest)?$"
IS_EMBEDDING = matches(rf"(^|/)(embeddings|projection|encoder/shared)/|{DECODER}")


def by_depth(decay: float, offset: int = 1) -> optax.GradientTransformation:
    """Scale updates by decay^(L + offset - depth): depth 0 for embeddings, 1 to L for layers; heads are not scaled.

    A decoder with a table of its own has depth 0, as one that is tied to the word embeddings. L is the size of the
    stack. Parameters that several layers share have the depth of the last one; fewer layers are spread up to L.
    """

    def update(updates: dict, state: optax.EmptyState, params: dict) -> tuple[dict, optax.EmptyState]:
        # Parameters that layers share have a shorter stack, so the longest one shows the depth.
        layers = max(leaf.shape[0] for path, leaf in leaves_of(params).items() if IS_STACKED(path))

        def scaled(path: str, update: jax.Array) -> jax.Array:
            if IS_STACKED(path):
                rows = update.shape[0]
                last_layers = (1 + jnp.arange(rows)) * layers // rows
                factors = decay ** (layers + offset - last_layers)
                return update * factors.reshape(-1, *[1] * (update.ndim - 1))
            return update * decay ** (layers + offset) if IS_EMBEDDING(path) else update

        return map_with_path(scaled, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def by_multiplier(multipliers: Sequence[Multiplier], what: str = "parameter") -> optax.GradientTransformation:
    """Scale updates by the first multiplier with a matching path; `what` it must match, for the message."""

    def factor_of(path: str, ndim: int) -> jax.Array | float:
        multiplier = next((entry for entry in multipliers if matches_any([entry.path], path)), Multiplier())
        if not multiplier.by_layer:
            return multiplier.factor
        return multiplier.factor * jnp.array(multiplier.by_layer).reshape(-1, *[1] * (ndim - 1))

    def check(params: dict) -> None:
        layers = {path: leaf.shape[0] for path, leaf in leaves_of(params).items() if IS_STACKED(path)}
        for index, multiplier in enumerate(multipliers):
            name = f"optimizer.multipliers.{index}"
            paths = find_paths(f"{name}.path", multiplier.path, params, what)
            for path in paths if multiplier.by_layer else []:
                if layers.get(path) != len(multiplier.by_layer):
                    has = f"has {layers[path]} layers" if path in layers else "is not stacked by layers"
                    raise UserError(
                        f"{name}.by_layer has {len(multiplier.by_layer)} factors, but {path!r} {has}; give a "
                        "factor for each layer, and a path that matches layers only"
                    )

    return stateless(check, lambda path, update, _: update * factor_of(path, update.ndim))


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


def find_paths(name: str, pattern: str, params: dict, what: str = "parameter") -> list[str]:
    """Return the parameter paths that match a pattern.

    Raises:
      UserError: no path matches.
    """
    paths = list(leaves_of(params))
    if matching := [path for path in paths if matches_any([pattern], path)]:
        return matching
    # cutoff=0.0: name some paths even if none is similar.
    near = difflib.get_close_matches(pattern, paths, n=3, cutoff=0.0)
    raise UserError(f"{name}={pattern!r} matches no {what}; the nearest paths are {', '.join(near)}")
