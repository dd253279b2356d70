"""Dense layers, norms and activations, the precision of products, and what is kept for the backward pass."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from bertjax.models.config import EncoderConfig

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
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable, jax.checkpoint_policies.save_only_these_names(KEPT)
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


Activation = Callable[[jax.Array], jax.Array]


def gelu(x: jax.Array) -> jax.Array:
    """GELU in its exact (erf) form, as in BERT (Hendrycks & Gimpel, 2016).

    In bfloat16 on CPU, 1 + erf rounds to multiples of 1/256: many values in (-4, -1) become 0. On TPU it is float32.
    """
    return 0.5 * x * (1.0 + jax.lax.erf(x * 2**-0.5))


def gelu_tanh(x: jax.Array) -> jax.Array:
    """Tanh approximation of GELU (Hendrycks & Gimpel, 2016, section 2)."""
    return 0.5 * x * (1.0 + jnp.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)))


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": jax.nn.relu, "tanh": jnp.tanh}


def activation(config: EncoderConfig) -> Activation:
    """Return the function for `config.activation`."""
    return ACTIVATIONS[config.activation]


class Dense(nn.Module):
    """`x @ kernel + bias` over the last axis, with BERT's initialization: truncated normal kernel, zero bias.

    Leading axes are merged before the product, so the gradient contracts one axis. XLA's CPU backend then reads the
    activations in place instead of first writing a transposed copy.

    With `activation_bits`, each row of x (one token) is rounded within its own range, so tokens do not affect each
    other and no state is kept. Q8BERT (Zafrir et al., 2019, arXiv 1910.06188, section 3) uses a moving average instead.

    Attributes:
      dtype: compute dtype; empty for the encoder's.
      stddev: standard deviation that the kernel starts from; None for the encoder's `init_stddev`.
    """

    config: EncoderConfig
    features: int
    use_bias: bool = True
    dtype: str = ""
    stddev: float | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [..., in] to [..., features]."""
        dtype = jnp.dtype(self.dtype or self.config.execution.dtype)
        init = nn.initializers.truncated_normal(self.config.init_stddev if self.stddev is None else self.stddev)
        kernel = self.param("kernel", init, (x.shape[-1], self.features))
        rows = x.reshape(-1, x.shape[-1])
        if self.config.activation_bits:
            rows = rounded(rows, self.config.activation_bits)
        rows = jnp.matmul(rows.astype(dtype), kernel.astype(dtype), precision=precision_of(dtype))
        if self.use_bias:
            rows += self.param("bias", nn.initializers.zeros, (self.features,)).astype(dtype)
        return kept(rows.reshape(*x.shape[:-1], self.features))


def rounded(values: jax.Array, bits: int | np.ndarray, axis: int = -1) -> jax.Array:
    """Round values to few bits; the gradient is passed through unchanged.

    There are 2^(bits - 1) - 1 levels on each side of 0, up to the largest absolute value along the axis. The gradient
    is the straight-through estimator (Bengio et al., 2013, arXiv 1308.3432).

    Args:
      values: floats.
      bits: one number, or an array that broadcasts against the largest values.
      axis: values along this axis share one scale.
    """
    floats, levels = values.astype(jnp.float32), np.asarray(2.0 ** (bits - 1) - 1, np.float32)
    scale = jnp.max(jnp.abs(floats), axis=axis, keepdims=True) / levels
    nearest = jnp.round(floats / jnp.where(scale > 0, scale, 1.0)) * scale
    # Straight-through estimator: forward this is `nearest`, backward the identity.
    return values + jax.lax.stop_gradient(nearest.astype(values.dtype) - values)


def layer_norm(config: EncoderConfig, name: str | None = None) -> nn.LayerNorm:
    """Return a layer norm over the last axis (Ba et al., 2016) with float32 statistics."""
    return nn.LayerNorm(
        epsilon=config.norm_epsilon,
        dtype=jnp.dtype(config.execution.dtype),
        use_bias=config.block.has_biases,
        # E[x^2] - E[x]^2 cancels when the mean is large; compute the variance from centered values.
        use_fast_variance=False,
        name=name,
    )


def normalization(config: EncoderConfig, name: str | None = None) -> nn.Module:
    """Return the norm that layers and embeddings of the encoder's block have, by default a layer norm."""
    return (config.block.norm or layer_norm)(config, name=name)
