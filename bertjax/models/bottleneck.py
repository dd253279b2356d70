"""The parts of MobileBERT's layers (Sun et al., 2020, arXiv 2004.02984): bottlenecks and stacked feed-forward networks.

The parts of a layer at its inner width have no dropout, as in the published code (google-research/mobilebert).
"""

import jax
from flax import linen as nn

from bertjax.models.activations import activation
from bertjax.models.config import EncoderConfig
from bertjax.models.dropout import dropout
from bertjax.models.layers import Dense
from bertjax.models.norms import normalization
from bertjax.models.visibility import Queries


class Bottleneck(nn.Module):
    """Dense layers from D to the inner width W and back, each with a norm (section 3.1)."""

    config: EncoderConfig

    def setup(self):
        config, biases = self.config, self.config.has_biases
        self.input, self.input_norm = Dense(config, config.inner_width, biases), normalization(config)
        if config.bottlenecked == "queries_keys":
            self.attention, self.attention_norm = Dense(config, config.inner_width, biases), normalization(config)
        self.output, self.output_norm = Dense(config, config.width, biases), normalization(config)

    def enter(
        self, hidden_BTD: jax.Array, queries: Queries | None
    ) -> tuple[jax.Array, Queries | None, jax.Array, jax.Array]:
        """Return (sum [B, Q, W] that the layer adds to, queries, keys, values).

        Args:
          hidden_BTD: states of all tokens.
          queries: states that attend; None for all tokens, whose queries are then those of the keys.
        """

        def narrow(x: jax.Array) -> jax.Array:
            return self.input_norm(self.input(x))

        def attend(x: jax.Array) -> jax.Array:
            return self.attention_norm(self.attention(x))

        own = None if queries is None else queries.hidden_BQD
        if self.config.bottlenecked == "all":
            narrow_BTW = narrow(hidden_BTD)
            sums = narrow_BTW if own is None else narrow(own)
            return sums, queries and queries._replace(hidden_BQD=sums), narrow_BTW, narrow_BTW
        sums = narrow(hidden_BTD if own is None else own)
        if self.config.bottlenecked == "queries_keys":
            return sums, queries and queries._replace(hidden_BQD=attend(own)), attend(hidden_BTD), hidden_BTD
        return sums, queries, hidden_BTD, hidden_BTD

    def leave(self, states: jax.Array, own: jax.Array, key: jax.Array | None) -> jax.Array:
        """Return the states [B, Q, W] mapped to D, added to those that the layer read, and normed."""
        return self.output_norm(own + dropout(self.output(states), self.config.dropout, key))


class FeedForward(nn.Module):
    """A feed-forward network with its sum and norm, which stands before the last one of a layer (section 3.2)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, states: jax.Array) -> jax.Array:
        """Return the new states, as wide as `states`."""
        config = self.config
        expanded = activation(config)(Dense(config, config.feedforward, config.has_biases, name="intermediate")(states))
        output = Dense(config, states.shape[-1], config.has_biases, name="output")(expanded)
        return normalization(config, "output_norm")(states + output)
