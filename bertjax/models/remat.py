"""What the backward pass of a layer finds in memory, and what it computes again: the policies of `runtime.remat`."""

import jax
from jax.ad_checkpoint import checkpoint_name

# Name of the weights that `Execution.gather_layer` gathered, which are never kept.
GATHERED = "gathered"

# Name of what is kept under `dots`, beside products with weights: these with their bias, which their users read; the
# sums before a norm, whose parts are then not kept; what a kernel of attention needs.
KEPT = "kept"

POLICIES = {
    "none": None,
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names(KEPT),
    ),
    "full": jax.checkpoint_policies.nothing_saveable,
}


def kept(x: jax.Array) -> jax.Array:
    """Return `x`, which is kept under `dots` if the backward pass needs it."""
    return checkpoint_name(x, KEPT)
