"""Parts of MobileBERT's layers (Sun et al., 2020, arXiv 2004.02984): bottlenecks and stacked feed-forward networks.

There is no dropout at the inner width, as in the published code (google-research/mobilebert).
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
        """Return (residual [B, Q, W], queries, keys, values) for the layer.

        Args:
          hidden_BTD: states of all tokens.
          queries: states that attend; None for all tokens (the queries are then the keys' states).
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
        # MobileBERT: queries and keys share one bottleneck, while values read all D channels (table 1).
        sums = narrow(hidden_BTD if own is None else own)
        if self.config.bottlenecked == "queries_keys":
            return sums, queries and queries._replace(hidden_BQD=attend(own)), attend(hidden_BTD), hidden_BTD
        return sums, queries, hidden_BTD, hidden_BTD

    def leave(self, states: jax.Array, own: jax.Array, key: jax.Array | None) -> jax.Array:
        """Map states [B, Q, W] back to D, add them to the layer's input and normalize."""
        return self.output_norm(own + dropout(self.output(states), self.config.dropout, key))


class FeedForward(nn.Module):
    """An additional feed-forward network with residual and norm, before the last one in a layer (section 3.2)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, states: jax.Array) -> jax.Array:
        """Return the new states, as wide as `states`."""
        config = self.config
        expanded = activation(config)(Dense(config, config.feedforward, config.has_biases, name="intermediate")(states))
        output = Dense(config, states.shape[-1], config.has_biases, name="output")(expanded)
        return normalization(config, "output_norm")(states + output)
