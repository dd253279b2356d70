"""bertjax's step with one of its tricks replaced by the plain implementation; the result stays the same.

Hashed dropout is the one trick whose draw differs: same distribution (but for the rounded rate), other bits.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from bertjax.models import dropout, encoder, layers, long_rows
from bertjax.models.config import EncoderConfig
from bertjax.objectives import losses


class _ContractingDense(nn.Module):
    """A dense layer that does not merge its leading axes."""

    config: EncoderConfig
    features: int
    use_bias: bool = True
    dtype: str = ""
    stddev: float | None = None

    @nn.compact
    def __call__(self, x):
        init = nn.initializers.truncated_normal(self.config.init_stddev if self.stddev is None else self.stddev)
        kernel = self.param("kernel", init, (x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,)) if self.use_bias else 0.0
        return x @ kernel + bias


def _erfc_gelu(x):
    return jax.nn.gelu(x, approximate=False)


def _drawn_dropout(x, rate, key):
    """Apply dropout with one random number per element, as in `nn.Dropout`."""
    if key is None or rate == 0.0:
        return x
    kept = jax.vmap(lambda row_key: jax.random.bernoulli(row_key, 1.0 - rate, x.shape[1:]))(key)
    return jnp.where(kept, x / (1.0 - rate), 0.0)


def _drawn_attention_dropout(x, rate, seeds_BH2, columns_BQ=None):
    key_B = None if seeds_BH2 is None else jax.vmap(jax.random.key)(seeds_BH2[:, 0, 0])
    return _drawn_dropout(x, rate, key_B)


def _whole_rows(config, inputs, attend_plainly):
    return attend_plainly(inputs)[0]


class _EveryPosition(encoder.Encoder):
    """An encoder that computes all positions of the last layer, then gathers those that are read."""

    def __call__(self, *inputs, read_BK=None, **others):
        encoded = super().__call__(*inputs, **others)
        if read_BK is None:
            return encoded
        return encoded._replace(hidden=jnp.take_along_axis(encoded.hidden, read_BK[..., None], axis=1))


def _gathering_term(logits, labels, weights):
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.sum(loss * weights), jnp.sum((jnp.argmax(logits, axis=-1) == labels) * weights)


# {name: {function or class of bertjax: the plain implementation}}.
TRICKS: dict[str, dict[Any, Any]] = {
    "merged-axes": {layers.Dense: _ContractingDense},
    "erf-gelu": {layers.gelu: _erfc_gelu},
    "hashed-dropout": {dropout.dropout: _drawn_dropout, dropout.attention_dropout: _drawn_attention_dropout},
    "read-positions": {encoder.Encoder: _EveryPosition},
    "comparing-loss": {losses.classification_term: _gathering_term},
    "long-rows": {long_rows.context_of: _whole_rows},
}


def remove(trick: str, replace: Callable[[ModuleType, str, Any], None] = setattr) -> None:
    """Replace the trick by its plain implementation wherever bertjax uses it.

    Args:
      trick: a name of `TRICKS`.
      replace: sets a name in a module.
    """
    for module in [module for name, module in sys.modules.items() if name.startswith("bertjax.")]:
        for name, value in list(vars(module).items()):
            for ours, plain in TRICKS[trick].items():
                if value is ours:
                    replace(module, name, plain)
