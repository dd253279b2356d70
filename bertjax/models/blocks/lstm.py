"""Bidirectional LSTM layer for packed rows (Hochreiter & Schmidhuber, 1997).

Tang et al. (2019, arXiv 1903.12136) distill BERT into one such layer. Each direction has D / 2 channels. `heads`,
`feedforward`, `activation` and `attention_dropout` of the encoder have no effect.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.blocks.base import Block, Products, check_no_position_table
from bertjax.models.config import EncoderConfig
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.models.dropout import dropout
from bertjax.models.layers import Dense
from bertjax.models.pooling import first_columns, last_columns
from bertjax.models.taps import HIDDEN, LAYER_MASK
from bertjax.models.visibility import LayerInputs
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting

PAIRS = JOINT, SIAMESE = ("joint", "siamese")

# {encoder setting: the only value that an LSTM supports}
_OWN: dict[str, Any] = {"direction": BIDIRECTIONAL, "sharing": "none", "activation_bits": 0, "head_width": 0}


@dataclasses.dataclass(frozen=True)
class LSTMBlock(Block):
    """A bidirectional LSTM layer.

    Attributes:
      pairs: how the two texts of a pair are read: `joint`, as one sequence, or `siamese`, each from a zero state (Tang
        et al., 2019). The summary is then 4 D wide, see `summaries`.
    """

    kind: str = dataclasses.field(init=False, default="lstm")
    pairs: str = setting(JOINT, choices=PAIRS)
    captures: ClassVar[tuple[str, ...]] = (HIDDEN,)
    masks: ClassVar[tuple[str, ...]] = (LAYER_MASK,)

    def check(self, config):
        for field, own in _OWN.items():
            if (value := getattr(config, field)) != own:
                raise UserError(
                    f"model.block.kind=lstm does not go with model.{field}={value}; set model.{field}={own}"
                )
        if config.width % 2:
            raise UserError(f"model.block.kind=lstm needs an even model.width, not {config.width}")
        check_no_position_table(config, "reads tokens in order")

    def layer(self, config):
        return LSTMLayer(config, parent=None)

    def products(self, config):
        # Each direction multiplies the D channels and its D / 2 state channels with four gate kernels of width D / 2.
        # A recurrence computes all tokens, also where few are read.
        return Products(tokens=6 * config.width**2)

    def tensor_widths(self, config):
        return config.width, config.width // 2

    def texts(self, examples_BT, segments_BT):
        if self.pairs == JOINT:
            return examples_BT
        # The two texts of example n are 2 n - 1 and 2 n.
        return jnp.where(examples_BT > 0, 2 * examples_BT - (segments_BT == 0), 0)

    def summary_columns(self, config, texts_BT, summary_positions_BN):
        # The directions end at a text's last and first token: M is 2 S, all last columns followed by all first ones. S
        # is N, or 2 N if pairs are read separately.
        slots = summary_positions_BN.shape[1] * (1 if self.pairs == JOINT else 2)
        return jnp.concatenate([last_columns(texts_BT, slots), first_columns(texts_BT, slots)], axis=1)

    def summaries(self, states_BMD, texts_BT):
        """Return the last state in each direction, as in the code of Tang et al. (castorini/d-bert, `BiRNNModel`).

        A pair that is read separately has both texts' states, their absolute difference and their product
        (`SiameseRNNModel`), [B, N, 4 D]; a missing text is 0.
        """
        last_BSD, first_BSD = jnp.split(states_BMD, 2, axis=1)
        channels = states_BMD.shape[-1] // 2
        states_BSD = jnp.concatenate([last_BSD[..., :channels], first_BSD[..., channels:]], axis=-1)
        if self.pairs == JOINT:
            return states_BSD
        is_there_BS = jnp.any(texts_BT[:, None, :] == 1 + jnp.arange(states_BSD.shape[1])[:, None], axis=-1)
        states_BSD = jnp.where(is_there_BS[..., None], states_BSD, 0.0)
        one_BND, other_BND = states_BSD[:, ::2], states_BSD[:, 1::2]
        return jnp.concatenate([one_BND, other_BND, jnp.abs(one_BND - other_BND), one_BND * other_BND], axis=-1)

    def summary_width(self, config):
        return config.width * (1 if self.pairs == JOINT else 4)


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
        gates_BTG = Dense(self.config, 4 * channels, self.config.block.has_biases, name="input")(hidden_BTD)
        init = nn.initializers.truncated_normal(self.config.init_stddev)
        return recur(gates_BTG, self.param("kernel", init, (channels, 4 * channels)), is_first_BT, reverse=self.reverse)


class LSTMLayer(nn.Module):
    """One bidirectional layer with D channels, D / 2 per direction."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, inputs: LayerInputs) -> jax.Array:
        """Return the new hidden states; the recurrence encodes token order."""
        hidden_BTD, visibility, key, queries, *_ = inputs
        examples_BT = visibility.examples_BT
        changes = examples_BT[:, 1:] != examples_BT[:, :-1]
        is_edge = jnp.ones_like(examples_BT[:, :1], bool)
        is_first_BT, is_last_BT = (jnp.concatenate(parts, axis=1) for parts in ([is_edge, changes], [changes, is_edge]))
        forward_BTC = Direction(self.config, name="forward")(hidden_BTD, is_first_BT)
        backward_BTC = Direction(self.config, reverse=True, name="backward")(hidden_BTD, is_last_BT)
        output_BTD = jnp.concatenate([forward_BTC, backward_BTC], axis=-1).astype(hidden_BTD.dtype)
        if queries is not None:
            output_BTD = jnp.take_along_axis(output_BTD, queries.columns_BQ[..., None], axis=1)
        return dropout(output_BTD, self.config.dropout, key)
