"""All that crosses from one step to the next."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from bertjax.training.parallel.sharding import Rules, shardings

# A plain dict {step, params, opt_state, skipped}: what is saved is what a reader sees.
State = dict


def new_state(
    init_params: Callable[[jax.Array], dict], optimizer: optax.GradientTransformation
) -> Callable[[jax.Array], State]:
    """A function from a key to the state at step 0.

    Args:
      init_params: from a key.
      optimizer: whose state is kept.

    Returns:
      key -> {step: int32, steps done; params; opt_state; skipped: int32, how many steps in a row were non-finite}.
    """

    def create(key: jax.Array) -> State:
        params = init_params(key)
        return {
            "step": jnp.zeros((), jnp.int32),
            "params": params,
            "opt_state": optimizer.init(params),
            "skipped": jnp.zeros((), jnp.int32),
        }

    return create


def abstract_state(create: Callable[[jax.Array], State], mesh: Mesh, rules: Rules) -> State:
    """Shapes, dtypes and shardings of a state, without a single array."""
    shapes = jax.eval_shape(create, jax.random.key(0))
    return jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding),
        shapes,
        shardings(shapes, rules, mesh),
    )


def init_state(create: Callable[[jax.Array], State], abstract: State, seed: int) -> State:
    """The state at step 0, created where it belongs on the mesh."""
    layout = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    return jax.jit(create, out_shardings=layout)(jax.random.key(seed))
