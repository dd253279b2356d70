"""The training state that each step passes to the next: initialization, sharding, steps, progressive stacking."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from bertjax.training.parallel.sharding import Rules, shardings, shardings_of

# A plain dict {step, params, opt_state, skipped}, plus slots if an objective has any. Checkpoints hold exactly this.
State = dict


def new_state(
    init_params: Callable[[jax.Array], dict],
    optimizer: optax.GradientTransformation,
    init_slots: Callable[[dict], dict] = lambda params: {},
) -> Callable[[jax.Array], State]:
    """Return a function from a key to the state at step 0.

    The state is {step: int32, steps done; params; opt_state; skipped: int32, consecutive non-finite steps}. `slots` is
    present only if a task has slots, so that other runs keep their checkpoint format.

    Args:
      init_params: returns the params for a key.
      optimizer: initializes `opt_state`.
      init_slots: returns {task: slots} for the params (`bertjax.objectives.slots`).
    """

    def create(key: jax.Array) -> State:
        params = init_params(key)
        slots = init_slots(params)
        return {
            "step": jnp.zeros((), jnp.int32),
            "params": params,
            "opt_state": optimizer.init(params),
            "skipped": jnp.zeros((), jnp.int32),
            **({"slots": slots} if slots else {}),
        }

    return create


def abstract_state(create: Callable[[jax.Array], Any], mesh: Mesh, rules: Rules) -> Any:
    """Return the shapes, dtypes and shardings of a state or of params, without computing them."""
    shapes = jax.eval_shape(create, jax.random.key(0))
    return jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding),
        shapes,
        shardings(shapes, rules, mesh),
    )


def init_state(create: Callable[[jax.Array], State], abstract: State, seed: int) -> State:
    """Return the state at step 0, sharded like `abstract`."""
    # Under jit each device creates only its own shards, so no device or host ever holds the full state.
    return jax.jit(create, out_shardings=shardings_of(abstract))(jax.random.key(seed))


def grow(state: State, abstract: State, init_moments: Callable[[dict], Any] | None = None) -> State:
    """Grow the encoder: repeat each stack of layers until it is as deep as in `abstract`.

    This is progressive stacking (Gong et al., 2019, section 3, "Efficient training of BERT by progressively stacking",
    ICML 2019, proceedings.mlr.press/v97/gong19a.html): the new upper layers start as copies of the lower ones.

    Args:
      state: the state before.
      abstract: shapes, dtypes and shardings after.
      init_moments: returns a new optimizer state for the params; None repeats the moments like the layers.
    """

    def repeat(leaf: jax.Array, target: jax.ShapeDtypeStruct) -> jax.Array:
        # Only stacked leaves change their shape. Stacking [1, 2, 3] gives [1, 2, 3, 1, 2, 3], as in the paper.
        if leaf.shape == target.shape:
            return leaf
        # The layer axis comes first in every stacked leaf, in the moments too.
        return jnp.concatenate([leaf] * (target.shape[0] // leaf.shape[0]))

    def grown(state: State) -> State:
        state = jax.tree.map(repeat, state, abstract)
        return state | {"opt_state": init_moments(state["params"])} if init_moments else state

    return jax.jit(grown, out_shardings=shardings_of(abstract))(state)
