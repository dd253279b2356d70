"""AdamW as BERT uses it. The learning rate is applied by the step, which knows its number."""

import jax
import optax

from bertjax.training.config import OptimizerConfig
from bertjax.training.paths import map_with_path, matches

_NOT_DECAYED = matches(r"(^|/)(\w*bias|scale)$")


def decay_mask(params: dict) -> dict:
    """True where weight decay applies: everywhere but on biases and layer norms."""
    return map_with_path(lambda path, _: not _NOT_DECAYED(path), params)


def adamw(config: OptimizerConfig) -> optax.GradientTransformation:
    """Clipping by global norm, Adam with bias correction, decoupled decay; gives the direction, not yet the step."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.epsilon),
        optax.add_decayed_weights(config.weight_decay, mask=decay_mask),
    )


def descend(params: dict, direction: dict, learning_rate: jax.Array) -> tuple[dict, dict]:
    """Returns (params, update) after one step against `direction`."""
    update = jax.tree.map(lambda d: -learning_rate * d, direction)
    return optax.apply_updates(params, update), update
