"""How exactly matrix products of float32 arrays are computed.

By default XLA computes them with less: on a TPU in one pass of bfloat16 (8 bits of each factor), on a GPU in TF32 (11
bits). What is called float32 here is float32 on every device, at the price of six passes on a TPU. A CPU computes the
same numbers in either case. A product of bfloat16 arrays needs no setting: it is exact and is summed in float32.
"""

import contextlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp

FLOAT32 = "float32"


def precision_of(dtype: jnp.dtype | str) -> jax.lax.Precision | None:
    """Return the `precision` of a product of arrays of a dtype."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None


@contextlib.contextmanager
def float32_products(dtype: str = FLOAT32) -> Iterator[None]:
    """A context, or a decorator, in which products of float32 arrays are float32, also those of other libraries.

    Args:
      dtype: dtype of the encoder; with another one than float32 the context has no effect.
    """
    # It holds while a program is traced, not while it runs. A gradient has the precision of its product.
    with jax.default_matmul_precision("highest") if dtype == FLOAT32 else contextlib.nullcontext():
        yield
