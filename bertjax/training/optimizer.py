"""AdamW and LAMB as BERT uses them. The learning rate is applied by the step, which knows its number.

Rules for some of the parameters select them by path, as for sharding. Stacked layers share one path and one array, so
what differs between layers varies along its first axis.
"""

import difflib
import operator
import re
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import optax

from bertjax.errors import UserError
from bertjax.training.config import Multiplier, OptimizerConfig
from bertjax.training.param_paths import map_with_path, matches, path_of

_IS_VECTOR = matches(r"(^|/)(\w*bias|scale)$")
_IS_STACKED = matches(r"(^|/)layers/")
_IS_EMBEDDING = matches(r"(^|/)(embeddings|projection)/")


def decay_mask(params: dict) -> dict:
    """Return True for params that weight decay applies to: all except biases and layer norms."""
    return map_with_path(lambda path, _: not _IS_VECTOR(path), params)


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Return the transformation from gradients to updates; the learning rate is not part of it.

    It clips by global norm and applies Adam with bias correction, decoupled weight decay and, for LAMB, the trust
    ratio. Frozen parameters have no moments, do not count in the norm, and get updates of 0. Creating the optimizer's
    state raises UserError if a pattern of the configuration matches no parameter.
    """
    steps = [
        optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.epsilon),
        optax.add_decayed_weights(config.weight_decay, mask=decay_mask),
    ]
    if config.clip_norm:
        steps.insert(0, optax.clip_by_global_norm(config.clip_norm))
    if config.kind == "lamb":
        steps.append(_by_trust_ratio())
    if config.layer_decay < 1.0:
        steps.append(_by_depth(config.layer_decay))
    if config.multipliers:
        steps.append(_by_multiplier(config.multipliers))
    chain = optax.chain(*steps)
    return _freezing(config.frozen, chain) if config.frozen else chain


def apply_updates(params: dict, updates: dict, learning_rate: jax.Array) -> tuple[dict, dict]:
    """Return (params after a step against `updates`, updates times -learning_rate)."""
    updates = jax.tree.map(lambda update: -learning_rate * update, updates)
    return optax.apply_updates(params, updates), updates


def without_gradient(params: dict, frozen_paths: Sequence[str]) -> dict:
    """Return the params with a gradient of 0 for frozen ones, so that no backward pass is computed for them."""
    is_frozen = _matches_any(frozen_paths)
    return map_with_path(lambda path, leaf: jax.lax.stop_gradient(leaf) if is_frozen(path) else leaf, params)


def trust_ratio(path: str, param: jax.Array, update: jax.Array) -> jax.Array:
    """Return ||param|| / ||update|| (You et al., 2020, algorithm 2), separately for each layer of a stack.

    It is 1 for biases and layer norms, and if one of the norms is 0.

    Returns:
      A scalar, or [L, 1, ...] for stacked layers.
    """
    if _IS_VECTOR(path):
        return jnp.ones(())
    axes = tuple(range(1, param.ndim)) if _IS_STACKED(path) else None
    param_norm, update_norm = (jnp.sqrt(jnp.sum(x**2, axis=axes, keepdims=axes is not None)) for x in (param, update))
    is_defined = (param_norm > 0.0) & (update_norm > 0.0)
    return jnp.where(is_defined, param_norm / jnp.where(update_norm > 0.0, update_norm, 1.0), 1.0)


def _by_trust_ratio() -> optax.GradientTransformation:
    return _stateless(lambda params: None, lambda path, update, param: update * trust_ratio(path, param, update))


def _by_depth(decay: float) -> optax.GradientTransformation:
    """Scale updates by decay^(L + 1 - depth): depth 0 for the embeddings, 1 to L for the layers, L + 1 for the heads.

    L counts the layers of the stack. A row of parameters that several layers share has the depth of the last of them.
    """

    def update(updates: dict, state: optax.EmptyState, params: dict) -> tuple[dict, optax.EmptyState]:
        layers = max(leaf.shape[0] for path, leaf in _leaves(params).items() if _IS_STACKED(path))

        def scaled(path: str, update: jax.Array) -> jax.Array:
            if _IS_STACKED(path):
                rows = update.shape[0]
                last_layers = (1 + jnp.arange(rows)) * (layers // rows)
                factors = decay ** (layers + 1 - last_layers)
                return update * factors.reshape(-1, *[1] * (update.ndim - 1))
            return update * decay ** (layers + 1) if _IS_EMBEDDING(path) else update

        return map_with_path(scaled, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _by_multiplier(multipliers: Sequence[Multiplier]) -> optax.GradientTransformation:
    def factor_of(path: str, ndim: int) -> jax.Array | float:
        multiplier = next((entry for entry in multipliers if re.search(entry.path, path)), Multiplier())
        if not multiplier.by_layer:
            return multiplier.factor
        return multiplier.factor * jnp.array(multiplier.by_layer).reshape(-1, *[1] * (ndim - 1))

    def check(params: dict) -> None:
        layers = {path: leaf.shape[0] for path, leaf in _leaves(params).items() if _IS_STACKED(path)}
        for index, multiplier in enumerate(multipliers):
            name = f"optimizer.multipliers.{index}"
            paths = _find(f"{name}.path", multiplier.path, params)
            for path in paths if multiplier.by_layer else []:
                if layers.get(path) != len(multiplier.by_layer):
                    has = f"has {layers[path]} layers" if path in layers else "is not stacked by layers"
                    raise UserError(
                        f"{name}.by_layer has {len(multiplier.by_layer)} factors, but {path!r} {has}; give a "
                        "factor for each layer, and a path of layers alone"
                    )

    return _stateless(check, lambda path, update, _: update * factor_of(path, update.ndim))


def _freezing(patterns: Sequence[str], trained: optax.GradientTransformation) -> optax.GradientTransformation:
    """Apply `trained` to parameters that no pattern matches; the others get updates of 0."""
    is_frozen = _matches_any(patterns)

    def frozen(params: dict) -> dict:
        return map_with_path(lambda path, _: is_frozen(path), params)

    def check(params: dict) -> None:
        for index, pattern in enumerate(patterns):
            _find(f"optimizer.frozen.{index}", pattern, params)
        if all(map(is_frozen, _leaves(params))):
            raise UserError(f"optimizer.frozen={list(patterns)} leaves no parameter to train; freeze fewer")

    masked = optax.masked(trained, lambda params: jax.tree.map(operator.not_, frozen(params)))
    zeroed = _stateless(check, lambda path, gradient, _: jnp.zeros_like(gradient) if is_frozen(path) else gradient)
    return optax.chain(zeroed, masked)


def _matches_any(patterns: Sequence[str]) -> Callable[[str], bool]:
    return lambda path: any(re.search(pattern, path) for pattern in patterns)


def _stateless(check: Callable[[dict], None], update: Callable) -> optax.GradientTransformation:
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


def _find(name: str, pattern: str, params: dict) -> list[str]:
    """The paths that hold a pattern."""
    paths = list(_leaves(params))
    if found := [path for path in paths if re.search(pattern, path)]:
        return found
    near = difflib.get_close_matches(pattern, paths, n=3, cutoff=0.0)
    raise UserError(f"{name}={pattern!r} finds no parameter; the nearest paths are {', '.join(near)}")
