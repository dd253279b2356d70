"""The training state, everything that one step passes to the next: how it is created, and how it grows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from bertjax.training.parallel.sharding import Rules, shardings

# A plain dict {step, params, opt_state, skipped}, and slots if an objective has any; saved as it is.
State = dict


def new_state(
    init_params: Callable[[jax.Array], dict],
    optimizer: optax.GradientTransformation,
    init_slots: Callable[[dict], dict] = lambda params: {},
) -> Callable[[jax.Array], State]:
    """Return a function from a key to the state at step 0.

    The state is {step: int32, steps done; params; opt_state; skipped: int32, non-finite steps in a row}. It also has
    `slots` if there are any; other runs have no such entry, so their checkpoints are what they always were.

    Args:
      init_params: returns the params for a key.
      optimizer: initializes `opt_state`.
      init_slots: returns {task: its slots} for the params (`bertjax.objectives.slots`).
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


def abstract_state(create: Callable[[jax.Array], State], mesh: Mesh, rules: Rules) -> State:
    """Return the shapes, dtypes and shardings of a state."""
    shapes = jax.eval_shape(create, jax.random.key(0))
    return jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding),
        shapes,
        shardings(shapes, rules, mesh),
    )


def init_state(create: Callable[[jax.Array], State], abstract: State, seed: int) -> State:
    """Return the state at step 0, created with the shardings of `abstract`."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    return jax.jit(create, out_shardings=shardings)(jax.random.key(seed))


def grow(state: State, abstract: State, moments: str = "copy") -> State:
    """Return the state with more layers: each stack of layers is repeated until it is as deep as in `abstract`.

    This is progressive stacking (Gong et al., 2019, section 3, "Efficient training of BERT by progressively stacking",
    ICML 2019, proceedings.mlr.press/v97/gong19a.html): the new upper layers start as copies of the lower ones.

    Args:
      state: the state before.
      abstract: shapes, dtypes and shardings of the state after.
      moments: `copy` copies the moments of the optimizer like the layers. `reset` starts it from scratch: moments and
        their count, by which Adam corrects its bias, are 0.
    """

    def repeat(leaf: jax.Array, target: jax.ShapeDtypeStruct) -> jax.Array:
        if leaf.shape == target.shape:
            return leaf
        return jnp.concatenate([leaf] * (target.shape[0] // leaf.shape[0]))

    def grown(state: State) -> State:
        state = jax.tree.map(repeat, state, abstract)
        if moments == "reset":
            state["opt_state"] = jax.tree.map(jnp.zeros_like, state["opt_state"])
        return state

    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    return jax.jit(grown, out_shardings=shardings)(state)
