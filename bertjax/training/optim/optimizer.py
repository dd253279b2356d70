"""Optimizers by their settings. The training step applies the learning rate, since it knows the step count."""

import jax
import jax.numpy as jnp
import optax

from bertjax.runtime.errors import UserError
from bertjax.training.optim.adam import by_update_size, scale_by_adam, scale_by_muon
from bertjax.training.optim.by_path import IS_STACKED, by_depth, by_multiplier, stateless
from bertjax.training.optim.config import OptimizerConfig
from bertjax.training.optim.ema import average_params
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
    return scale_by_muon(adam, config.block) if config.kind == "muon" else adam


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
