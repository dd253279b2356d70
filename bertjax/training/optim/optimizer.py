"""Optimizers by their settings, and a moving average of the params, which is evaluated and exported beside them.

The training step applies the learning rate, since it knows the step count. Late in training with a high learning rate,
the average over the last steps scores better than the last step (Polyak & Juditsky, 1992; for language models Kaddour,
2022, arXiv 2209.14981). After a decay to 0 there is less to gain.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bertjax.runtime.errors import UserError
from bertjax.training.optim.adam import by_update_size, scale_by_adam, scale_by_muon
from bertjax.training.optim.by_path import IS_STACKED, by_depth, by_multiplier, stateless
from bertjax.training.optim.config import OptimizerConfig
from bertjax.training.optim.freezing import freeze
from bertjax.training.optim.outside import outside_optimizer
from bertjax.training.param_paths import decay_mask, is_decayed


def make_optimizer(config: OptimizerConfig, counts_by_leaf: bool = False) -> optax.GradientTransformation:
    """Return the transformation from gradients to updates, without the learning rate.

    It clips by global norm, applies Adam, Muon or an optimizer from outside, decoupled weight decay and, for LAMB, the
    trust ratio. Frozen parameters have no moments, do not count in the norm, and get zero updates. `init` raises
    UserError if a configured pattern matches no parameter. For `counts_by_leaf` see `scale_by_adam`.

    Raises:
      UserError: an optimizer from outside cannot be made, or counts its steps for all parameters together although some
        start later.
    """
    decay = optax.add_decayed_weights(config.weight_decay, mask=decay_mask)
    steps = [_scale(config, counts_by_leaf), decay]  # decay after Adam: decoupled, not L2
    if config.kind == "stable_adamw":
        steps = [by_update_size(optax.chain(*steps), config.b2, config.epsilon)]
    if config.clip_norm:
        steps.insert(0, optax.clip_by_global_norm(config.clip_norm))
    if config.kind == "lamb":
        steps.append(
            stateless(lambda params: None, lambda path, update, param: update * trust_ratio(path, param, update))
        )
    if config.multipliers:
        steps.append(by_multiplier(config.multipliers, "trained parameter" if config.frozen else "parameter"))
    if config.ema_decay:  # inside of `freeze`, so that frozen parameters have no average
        steps.append(average_params(config.ema_decay))
    chain = optax.chain(*steps)
    if config.frozen:
        chain = freeze(config.frozen, chain)
    if config.layer_decay < 1.0:  # outside of `freeze`, which hides frozen layers; they still count for the depth
        chain = optax.chain(chain, by_depth(config.layer_decay, config.layer_decay_offset))
    return chain


def _scale(config: OptimizerConfig, counts_by_leaf: bool) -> optax.GradientTransformation:
    """Return the transformation that turns a gradient into an update, without decay."""
    if config.is_outside:
        if counts_by_leaf:
            raise UserError(
                f"optimizer.kind={config.kind!r} may count steps for all parameters together, and some are not trained "
                "in every step (several tasks, or stages that freeze): set optimizer.kind=adamw"
            )
        return outside_optimizer(config.kind, config.arguments)
    adam = scale_by_adam(config.b1, config.b2, config.epsilon, config.bias_correction, counts_by_leaf)
    return scale_by_muon(adam) if config.kind == "muon" else adam


def trust_ratio(path: str, param: jax.Array, update: jax.Array) -> jax.Array:
    """Return ||param|| / ||update|| (You et al., 2020, algorithm 2), for each layer in a stack separately.

    It is 1 for biases, layer norms and pruning scores, and if one of the norms is 0.

    Returns:
      A scalar, or [L, 1, ...] for stacked layers.
    """
    if not is_decayed(path):
        return jnp.ones(())
    axes = tuple(range(1, param.ndim)) if IS_STACKED(path) else None
    param_norm, update_norm = (jnp.sqrt(jnp.sum(x**2, axis=axes, keepdims=axes is not None)) for x in (param, update))
    is_defined = (param_norm > 0.0) & (update_norm > 0.0)
    return jnp.where(is_defined, param_norm / jnp.where(update_norm > 0.0, update_norm, 1.0), 1.0)


class EmaState(NamedTuple):
    """The average of the params before each update so far.

    Attributes:
      count: number of updates, int32 [].
      ema: exponential moving average, float32, shaped and sharded like the params.
    """

    count: jax.Array
    ema: Any


def average_params(decay: float) -> optax.GradientTransformation:
    """Return a transformation that leaves updates unchanged and averages the params (`averaged` reads the result).

    `optax.ema` averages updates. The params of a step are known only after the learning rate is applied, so each update
    adds the params before it. Params that a stage freezes count with the value that they keep.

    Args:
      decay: decay rate; the average covers about the last 1 / (1 - decay) of n updates, or the last n / 9 while n is
        below 9 decay / (1 - decay). So rates from n / (n + 9) on have the same average after n updates.
    """

    def init(params: Any) -> EmaState:
        return EmaState(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params, dtype=jnp.float32))

    def update(updates: Any, state: EmaState, params: Any) -> tuple[Any, EmaState]:
        return updates, EmaState(optax.safe_increment(state.count), _with_newest(decay, state, params))

    return optax.GradientTransformation(init, update)


def averaged(decay: float, state: dict) -> dict:
    """Return a training state with the average of all params so far, its own included, in place of its params.

    Params that are frozen in the whole run are returned as they are.

    Args:
      decay: decay rate.
      state: training state, with the `opt_state` of an optimizer with `average_params`.
    """
    return state | {"params": _average(decay, state["opt_state"], state["params"])}


@functools.partial(jax.jit, static_argnums=0)
def _average(decay: float, opt_state: Any, params: dict) -> dict:
    [state] = filter(_is_ema, jax.tree.leaves(opt_state, is_leaf=_is_ema))
    return _with_newest(decay, state, params)


def _with_newest(decay: float, state: EmaState, params: Any) -> Any:
    # A constant weight would keep the initial params for long. So the decay rate after n updates is at most
    # n / (n + 9), as in `tf.train.ExponentialMovingAverage` with `num_updates`: 0, 1/10, 2/11, ...
    weight = jnp.maximum(1.0 - decay, 9.0 / (state.count + 9.0))

    def moved(ema: jax.Array, param: jax.Array) -> jax.Array:
        return param if _is_masked(ema) else ema + weight * (param - ema)

    return jax.tree.map(moved, state.ema, params, is_leaf=_is_masked)


def _is_ema(node: Any) -> bool:
    return isinstance(node, EmaState)


def _is_masked(node: Any) -> bool:
    """Return whether a node replaces a parameter that is frozen in the whole run, which has no average."""
    return isinstance(node, optax.MaskedNode)
