"""The norms of encoder and heads: layer norm, and MobileBERT's replacement."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.config import EncoderConfig


def layer_norm(config: EncoderConfig, name: str | None = None) -> nn.LayerNorm:
    """Return a layer norm over the last axis (Ba et al., 2016) with statistics in float32."""
    return nn.LayerNorm(
        epsilon=config.norm_epsilon,
        dtype=jnp.dtype(config.execution.dtype),
        use_bias=config.has_biases,
        use_fast_variance=False,
        name=name,
    )


class NoNorm(nn.Module):
    """A factor and a bias for each channel, in place of a layer norm (Sun et al., 2020, MobileBERT, section 3.3)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return [..., channels]."""
        dtype = jnp.dtype(self.config.execution.dtype)
        scaled = x.astype(dtype) * self.param("scale", nn.initializers.ones, x.shape[-1:]).astype(dtype)
        if self.config.has_biases:
            scaled += self.param("bias", nn.initializers.zeros, x.shape[-1:]).astype(dtype)
        return scaled


def normalization(config: EncoderConfig, name: str | None = None) -> nn.Module:
    """Return a norm of the encoder, of the kind `config.normalization`."""
    return NoNorm(config, name=name) if config.normalization == "no_norm" else layer_norm(config, name)
