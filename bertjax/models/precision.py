"""Precision of float32 matrix products.

By default XLA computes them with less precision: on TPU in one bfloat16 pass (8 bits per factor), on GPU in TF32 (11
bits). In bertjax, float32 means float32 on every device, at the cost of six passes on TPU. On CPU there is no
difference. Products of bfloat16 arrays need no setting: they are exact and accumulate in float32.
"""

import contextlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp

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
