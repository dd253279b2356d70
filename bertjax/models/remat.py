"""Rematerialization policies (`runtime.remat`): what is saved for the backward pass and what is recomputed."""

from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

# Name for weights that `Execution.gather_layer` gathered. They are never saved: that would undo the sharding.
GATHERED = "gathered"

# Name for tensors that `dots` saves in addition to matmul outputs: biased matmul outputs (their consumers read these),
# pre-norm sums (so their summands need not be saved), and the residuals of attention kernels.
KEPT = "kept"

POLICIES = {
    # Save everything: nothing is recomputed, at the price of memory.
    "none": None,
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names(KEPT),
    ),
    # Save only each layer's inputs and run its whole forward pass again (Chen et al., 2016, arXiv 1604.06174).
    "full": jax.checkpoint_policies.nothing_saveable,
}


def kept(x: jax.Array) -> jax.Array:
    """Return `x`, marked to be saved under `dots` if the backward pass needs it."""
    return checkpoint_name(x, KEPT)


def save_all_but_gathered(primitive: Any, *_: Any, **params: Any) -> bool:
    """`none` for sharded layers: save everything but gathered weights, which are gathered again.

    JAX's own `save_anything_except_these_names` leaves out the named values only. It would save the results of the
    gathers, of which they are copies.
    """
    return primitive.name not in ("all_gather", "linear_call") and params.get("name") != GATHERED
