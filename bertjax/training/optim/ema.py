"""A moving average of the params, kept in the optimizer's state and evaluated and exported beside the params.

Late in training with a high learning rate, the average over the last steps scores better than the last step (Polyak &
Juditsky, 1992; for language models Kaddour, 2022, arXiv 2209.14981). After a decay to 0 there is less to gain.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


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
