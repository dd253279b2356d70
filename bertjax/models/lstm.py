"""Bidirectional LSTM layer for packed rows (Hochreiter & Schmidhuber, 1997).

Tang et al. (2019, arXiv 1903.12136) distill BERT into one such layer.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.config import EncoderConfig
from bertjax.models.dropout import dropout
from bertjax.models.layers import Dense
from bertjax.models.visibility import Queries, Visibility


def recur(gates_BTG: jax.Array, kernel_CG: jax.Array, is_first_BT: jax.Array, *, reverse: bool = False) -> jax.Array:
    """Run an LSTM whose state is reset at the first token of each example; return its states, float32 [B, T, C].

    Args:
      gates_BTG: input contribution to the gates, including biases; G = 4 C, ordered input, forget, cell, output.
      kernel_CG: recurrent kernel.
      is_first_BT: bool, tokens that start an example in the direction of the recurrence.
      reverse: run from the last column to the first.
    """
    kernel_CG = kernel_CG.astype(jnp.float32)
    zeros_BC = jnp.zeros((gates_BTG.shape[0], kernel_CG.shape[0]), jnp.float32)

    def step(carry: tuple[jax.Array, jax.Array], inputs: tuple[jax.Array, jax.Array]) -> Any:
        gates_BG, is_first_B = inputs
        # Rows are packed: forget the previous example at the start of the next one.
        state_BC, cell_BC = (jnp.where(is_first_B[:, None], 0.0, value) for value in carry)
        gates_BG = gates_BG + jnp.dot(state_BC, kernel_CG, precision=jax.lax.Precision.HIGHEST)
        write, keep, new, read = jnp.split(gates_BG, 4, axis=-1)
        cell_BC = jax.nn.sigmoid(keep) * cell_BC + jax.nn.sigmoid(write) * jnp.tanh(new)
        state_BC = jax.nn.sigmoid(read) * jnp.tanh(cell_BC)
        return (state_BC, cell_BC), state_BC

    # Input gates for all tokens were one matmul; only the recurrent product remains in the sequential loop.
    by_column = jnp.swapaxes(gates_BTG.astype(jnp.float32), 0, 1), jnp.swapaxes(is_first_BT, 0, 1)
    _, states_TBC = jax.lax.scan(step, (zeros_BC, zeros_BC), by_column, reverse=reverse)
    return jnp.swapaxes(states_TBC, 0, 1)


class Direction(nn.Module):
    """One LSTM direction: the dense layer for its inputs and the recurrent kernel."""

    config: EncoderConfig
    reverse: bool = False

    @nn.compact
    def __call__(self, hidden_BTD: jax.Array, is_first_BT: jax.Array) -> jax.Array:
        """Return float32 [B, T, D / 2]; arguments as in `recur`."""
        channels = self.config.width // 2
        gates_BTG = Dense(self.config, 4 * channels, self.config.has_biases, name="input")(hidden_BTD)
        init = nn.initializers.truncated_normal(self.config.init_stddev)
        return recur(gates_BTG, self.param("kernel", init, (channels, 4 * channels)), is_first_BT, reverse=self.reverse)


class LSTMLayer(nn.Module):
    """One bidirectional layer with D channels, D / 2 per direction."""

    config: EncoderConfig

    @nn.compact
    def __call__(
        self,
        hidden_BTD: jax.Array,
        visibility: Visibility,
        key: jax.Array | None = None,
        queries: Queries | None = None,
        positions: None = None,
    ) -> jax.Array:
        """Return the new hidden states of all tokens, or of the `queries`."""
        del positions  # the recurrence itself encodes the token order
        examples_BT = visibility.examples_BT
        changes = examples_BT[:, 1:] != examples_BT[:, :-1]
        is_edge = jnp.ones_like(examples_BT[:, :1], bool)
        forward, backward = (
            Direction(self.config, name="forward"),
            Direction(self.config, reverse=True, name="backward"),
        )
        states = (
            forward(hidden_BTD, jnp.concatenate([is_edge, changes], axis=1)),
            backward(hidden_BTD, jnp.concatenate([changes, is_edge], axis=1)),
        )
        output_BTD = jnp.concatenate(states, axis=-1).astype(hidden_BTD.dtype)
        if queries is not None:
            output_BTD = jnp.take_along_axis(output_BTD, queries.columns_BQ[..., None], axis=1)
        return dropout(output_BTD, self.config.dropout, key)
