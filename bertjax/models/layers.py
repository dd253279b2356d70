"""Dense layers, norms and activations."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.models.config import EncoderConfig
from bertjax.models.execution import kept, precision_of

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
