"""How an encoder is executed: the precision of products, and what is kept for the backward pass."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

FLOAT32 = "float32"


def precision_of(dtype: jnp.dtype | str) -> jax.lax.Precision | None:
    """Return the `precision` argument for a matrix product of arrays with this dtype."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


@contextlib.contextmanager
def float32_products(dtype: str = FLOAT32) -> Iterator[None]:
    """Context manager or decorator: float32 matrix products stay float32, in other libraries too.

    Args:
      dtype: encoder dtype; the context has no effect unless it is float32.
    """
    # This matters while a program is traced, not while it runs. Gradients inherit the precision of their product.
    with jax.default_matmul_precision("highest") if dtype == FLOAT32 else contextlib.nullcontext():
        yield


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
    """`none` for sharded layers: save everything but gathered weights, which are gathered again."""
    # JAX's `save_anything_except_these_names` would save the gathers' results, of which the named values are copies.
    return primitive.name not in ("all_gather", "linear_call") and params.get("name") != GATHERED
