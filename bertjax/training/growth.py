"""Progressive stacking: the number of layers is doubled during training (Gong et al., 2019, section 3).

"Efficient training of BERT by progressively stacking", ICML 2019 (proceedings.mlr.press/v97/gong19a.html). The new
upper layers start as copies of the lower ones. The optimizer continues, so their moments are copied, too.
"""

import jax
import jax.numpy as jnp

from bertjax.training.program import Program
from bertjax.training.state import State


def grow(state: State, program: Program) -> State:
    """Return the state with more layers: each stack of layers is repeated until it is as deep as in `program`.

    Args:
      state: a state with fewer layers.
      program: the program of the next stage.
    """

    def repeat(leaf: jax.Array, target: jax.ShapeDtypeStruct) -> jax.Array:
        if leaf.shape == target.shape:
            return leaf
        return jnp.concatenate([leaf] * (target.shape[0] // leaf.shape[0]))

    abstract = program.abstract_state
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    return jax.jit(lambda state: jax.tree.map(repeat, state, abstract), out_shardings=shardings)(state)
