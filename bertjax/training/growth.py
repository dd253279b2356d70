"""Progressive stacking: a trained stack of layers is doubled, and training goes on (Gong et al., 2019, section 3).

"Efficient training of BERT by progressively stacking", ICML 2019 (proceedings.mlr.press/v97/gong19a.html): the layers
of the upper half begin as copies of those of the lower half. So do their moments, since the optimizer goes on, too.
"""

import jax
import jax.numpy as jnp

from bertjax.training.program import Program
from bertjax.training.state import State


def grow(state: State, program: Program) -> State:
    """The state of a program of more layers, each stack of layers being copied on top of itself.

    Args:
      state: of the same run with fewer layers.
      program: of the stage that follows.
    """

    def copied(leaf: jax.Array, wanted: jax.ShapeDtypeStruct) -> jax.Array:
        if leaf.shape == wanted.shape:
            return leaf
        return jnp.concatenate([leaf] * (wanted.shape[0] // leaf.shape[0]))

    abstract = program.abstract_state
    layout = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    return jax.jit(lambda state: jax.tree.map(copied, state, abstract), out_shardings=layout)(state)
