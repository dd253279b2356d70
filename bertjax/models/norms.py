"""Normalization layers: layer norm and MobileBERT's NoNorm."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.config import EncoderConfig


def layer_norm(config: EncoderConfig, name: str | None = None) -> nn.LayerNorm:
    """Return a layer norm over the last axis (Ba et al., 2016) with float32 statistics."""
    return nn.LayerNorm(
        epsilon=config.norm_epsilon,
        dtype=jnp.dtype(config.execution.dtype),
        use_bias=config.has_biases,
        # E[x^2] - E[x]^2 cancels when the mean is large; compute the variance from centered values.
        use_fast_variance=False,
        name=name,
    )


class NoNorm(nn.Module):
    """Per-channel scale and bias that replaces layer norm (Sun et al., 2020, MobileBERT, section 3.3)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return `x` scaled and shifted, [..., channels]."""
        dtype = jnp.dtype(self.config.execution.dtype)
        scaled = x.astype(dtype) * self.param("scale", nn.initializers.ones, x.shape[-1:]).astype(dtype)
        if self.config.has_biases:
            scaled += self.param("bias", nn.initializers.zeros, x.shape[-1:]).astype(dtype)
        return scaled


def normalization(config: EncoderConfig, name: str | None = None) -> nn.Module:
    """Return the encoder's norm layer, as `config.normalization` selects it."""
    return NoNorm(config, name=name) if config.normalization == "no_norm" else layer_norm(config, name)
