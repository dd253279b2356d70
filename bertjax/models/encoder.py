"""Encoder: embeddings, a stack of identical layers, a pooler.

The layers are one parameter tree with a leading layer axis, run as a scan. Shared parameters have fewer rows
(`bertjax.models.stack`). If heads read few positions, the last layer runs only there.
"""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models import captures, stack, taps
from bertjax.models.config import EncoderConfig
from bertjax.models.directions import BIDIRECTIONAL, ranks_of
from bertjax.models.dropout import split
from bertjax.models.embeddings import check_ids
from bertjax.models.kernels import PLAIN, implementation_at
from bertjax.models.layers import ACTIVATIONS, POLICIES, Dense, normalization, save_all_but_gathered
from bertjax.models.streams import Streams
from bertjax.models.visibility import LayerInputs, Queries, Visibility


class Encoded(NamedTuple):
    """Encoder outputs.

    Attributes:
      hidden: [B, T, D], or [B, K, D] at the positions `read_BK`.
      pooled_BND: tanh of a dense layer on each [CLS], or its state if the block has no pooler; None if params lack one.
    """

    hidden: jax.Array
    pooled_BND: jax.Array | None


class _Depth(NamedTuple):
    """Inputs that differ between layers; the scan slices them from stacked arrays.

    Attributes:
      number: int32, 0 for the first layer.
      params: parameters that the layer does not share.
      masks: {name: mask}, see `bertjax.models.taps`.
    """

    number: jax.Array
    params: dict
    masks: dict[str, jax.Array]
    key: jax.Array | None


class _Tokens(NamedTuple):
    """Inputs shared by all layers: visibility, positions and, for XLNet and MPNet, the streams of predicted tokens."""

    visibility: Visibility
    positions: Any
    streams: Streams | None = None


def first_positions(config: EncoderConfig, key: jax.Array, zeros_BT: jax.Array) -> Any:
    """Return what layers read about positions in rows of zeros, with initial parameters if layers share any."""
    if (shared := config.block.shared_module(config)) is None:
        return config.block.positions(config, zeros_BT, zeros_BT)
    return shared.init_with_output(key, zeros_BT, zeros_BT)[0]


class Encoder(nn.Module):
    """Encoder of BERT (Devlin et al., 2019, section 3) and its relatives, as configured.

    If `embeddings` is set, it replaces the encoder's own: another encoder's, with the same E, in the same root module.
    """

    config: EncoderConfig
    embeddings: Any = None

    def __post_init__(self):
        if self.embeddings is None:
            self.embeddings = self.config.embeddings.layer(self.config)
        super().__post_init__()

    def setup(self):
        if self.config.has_projection:
            self.projection = Dense(self.config, self.config.width, self.config.block.has_biases)
        if self.config.block.has_final_norm:
            self.final_norm = normalization(self.config)
        if self.is_initializing() or self.config.execution.gather_layer is None:
            self.layers = self.param("layers", self._init_layers)
        else:  # a device's shard of the stack, whose shape no initializer gives
            self.layers = self.get_variable("params", "layers")
        self.shared = self.config.block.shared_module(self.config)
        self.pooler = Dense(self.config, self.config.width)

    def _init_layers(self, key: jax.Array) -> dict:
        hidden_BTD, zeros_BT = jnp.zeros((1, 1, self.config.width)), jnp.zeros((1, 1), jnp.int32)
        positions = first_positions(self.config, key, zeros_BT)

        def init(key: jax.Array) -> dict:
            layer = self.config.block.layer(self.config)
            inputs = LayerInputs(hidden_BTD, Visibility(zeros_BT), positions=positions, number=jnp.int32(0))
            return cast(dict, layer.init(key, inputs)["params"])

        return stack.create(self.config, jax.vmap(init), jax.random.split(key, self.config.layers))

    def __call__(
        self,
        tokens_BT: jax.Array,
        segments_BT: jax.Array | None = None,
        positions_BT: jax.Array | None = None,
        examples_BT: jax.Array | None = None,
        summary_positions_BN: jax.Array | None = None,
        *,
        read_BK: jax.Array | None = None,
        streams: Any = None,
        key: jax.Array | None = None,
    ) -> Encoded:
        """Encode a batch.

        Args:
          tokens_BT, segments_BT: int token ids and segments; segments are all 0 by default.
          positions_BT: int, restarting in each example; 0..T-1 by default.
          examples_BT: int, 0 = padding; all 1 by default (if there is padding, pass what `Tokenizer.rows` returns).
          summary_positions_BN: int, column of each example's [CLS]; column 0 by default. Unless the encoder is
            bidirectional, only its shape matters: the last token of each example is pooled.
          read_BK: int, positions whose hidden states are returned; all by default.
          streams: the order in which XLNet or MPNet predicts tokens. The states that are returned are then those of
            the query stream at these tokens, and nothing is pooled.
          key: dropout key, or keys [B], one per row; None disables dropout.

        Raises:
          ValueError: the arguments or the taps contradict each other or the config.
        """
        block, to_capture = self.config.block, taps.names_of(self)
        self._check(to_capture, tokens_BT.shape[1], positions_BT, streams)
        segments_BT = jnp.zeros_like(tokens_BT) if segments_BT is None else jnp.asarray(segments_BT)  # may be NumPy's
        columns_BT = jnp.broadcast_to(jnp.arange(tokens_BT.shape[1]), tokens_BT.shape)
        positions_BT = columns_BT if positions_BT is None else positions_BT
        examples_BT = jnp.ones_like(tokens_BT) if examples_BT is None else jnp.asarray(examples_BT, jnp.int32)
        if summary_positions_BN is None:
            summary_positions_BN = jnp.zeros((tokens_BT.shape[0], 1), jnp.int32)
        direction = self.config.direction
        rank_BT = None if direction == BIDIRECTIONAL else ranks_of(direction)(columns_BT, segments_BT)
        texts_BT = block.texts(examples_BT, segments_BT)
        summary_BM = block.summary_columns(self.config, texts_BT, summary_positions_BN)

        embedding_key, *layer_keys = [None] if key is None else split(key, self.config.layers + 1)
        places, row = (positions_BT, segments_BT), (tokens_BT, positions_BT, segments_BT, examples_BT)
        positions = block.positions(self.config, *places) if self.shared is None else self.shared(*places)
        if streams is not None:
            hidden_BSD = streams.begin(self, row, embedding_key)
            tokens = _Tokens(streams.visibility(texts_BT), streams.placed(positions), streams)
            return Encoded(self._run_stack(hidden_BSD, tokens, layer_keys, streams.columns_BK, to_capture), None)
        hidden_BTD = self.embed(*row, embedding_key)
        tokens = _Tokens(Visibility(texts_BT, rank_BT=rank_BT), positions)
        if read_BK is None:
            hidden = self._run_stack(hidden_BTD, tokens, layer_keys, None, to_capture)
            summary_BMD = jnp.take_along_axis(hidden, summary_BM[..., None], axis=1)
        else:
            # MLM reads ~15% of the tokens: skip the others in the last layer, but keep each example's summary.
            read_BQ = jnp.concatenate([summary_BM, read_BK], axis=1)
            read = self._run_stack(hidden_BTD, tokens, layer_keys, read_BQ, to_capture)
            summary_BMD, hidden = jnp.split(read, [summary_BM.shape[1]], axis=1)
        return Encoded(hidden, self.pool(block.summaries(summary_BMD, texts_BT)))

    def embed(self, tokens_BT, positions_BT, segments_BT, examples_BT, key) -> jax.Array:
        """Return the states before the first layer, from what `embeddings` reads."""
        check_ids("tokens_BT", tokens_BT, self.config.vocab_size)
        embedded = self.embeddings(tokens_BT, positions_BT, segments_BT, key, examples_BT)
        return self.projection(embedded) if self.config.has_projection else embedded

    def pool(self, summary_BND: jax.Array) -> jax.Array | None:
        """Return what `Encoded.pooled_BND` has for the examples' summaries."""
        if not self.config.block.has_pooler:
            return summary_BND
        # Imported checkpoints may lack a pooler, such as models that were trained with MLM only.
        if not (self.is_initializing() or self.has_variable("params", "pooler")):
            return None
        return ACTIVATIONS[self.config.pooler_activation](self.pooler(summary_BND))

    def _check(self, to_capture, seq_len, positions_BT, streams):
        most = self.config.max_positions if self.config.embeddings.has_position_table else seq_len
        if positions_BT is None and seq_len > most:
            raise ValueError(f"rows of {seq_len} tokens exceed the {most} positions; cut them, or pass positions_BT")
        if "attention" in to_capture and (found := implementation_at(self.config.execution, seq_len)) != PLAIN:
            raise ValueError(
                f"attention={found} keeps no probabilities to capture; build the encoder with "
                f'attention={PLAIN}, or name what to capture: "captured": {{"encoder": dict.fromkeys(["hidden"])}}'
            )
        if streams is not None and type(streams) is not self.config.block.streams:
            raise ValueError(
                f"model.block.kind={self.config.block.kind} has no {type(streams).__name__}; leave them out"
            )
        if streams is not None and (direction := self.config.direction) != BIDIRECTIONAL:
            raise ValueError(f"streams have an order of their own, and direction={direction} another; leave out one")

    def _run_stack(self, hidden_BTD, tokens, keys, read_BQ, to_capture):
        """Run all layers and the final norm; the last layer runs only at `read_BQ`, if given."""
        own, shared = stack.divide(self.config, self.layers)
        depths = _Depth(jnp.arange(self.config.layers), own, taps.masks_of(self), jnp.stack(keys) if keys else None)
        groups, (depths, shared) = stack.grouped(self.config, depths, shared)
        embedded_BTD, captured, last = hidden_BTD, [], None
        if groups is not None:
            hidden_BTD, values = self._run_groups(hidden_BTD, tokens, groups, to_capture)
            captured.append(values)
        if read_BQ is not None:
            depths, last = (jax.tree.map(lambda x, s=s: x[s], depths) for s in (slice(None, -1), -1))
        hidden, runs = hidden_BTD, [(slice(None), False)]
        if to_capture:
            runs = captures.runs_of_layers(len(depths.number), captures.layers_of(self, read_BQ))
        for run, is_captured in runs:
            part = depths if len(runs) == 1 else jax.tree.map(lambda x, run=run: x[run], depths)
            layer = self._layer(tokens, shared, to_capture if is_captured else ())
            hidden, values = jax.lax.scan(layer, hidden, part, unroll=self._unrolled(len(part.number)))
            captured += [values] if is_captured else []
        if last is not None:
            hidden, last = self._layer(tokens, shared, to_capture, read_BQ)(hidden, last)
        if to_capture:
            captures.store(self, embedded_BTD, captured, last)
        return self.final_norm(hidden) if self.config.block.has_final_norm else hidden

    def _run_groups(self, hidden_BTD, tokens, groups, to_capture):
        """Run groups of layers, each with shared parameters of its own; return as `jax.lax.scan` of layers does."""

        def run_group(hidden_BTD, group):
            depths, shared = group
            layer = self._layer(tokens, shared, to_capture)
            return jax.lax.scan(layer, hidden_BTD, depths, unroll=self._unrolled(len(depths.number)))

        unroll = self._unrolled(self.config.sharing_groups - 1)
        hidden_BTD, captured = jax.lax.scan(run_group, hidden_BTD, groups, unroll=unroll)
        return hidden_BTD, {name: values.reshape(-1, *values.shape[2:]) for name, values in captured.items()}

    def _unrolled(self, count: int) -> int:
        """Return how many of `count` steps of a loop are unrolled."""
        return max(count, 1) if self.config.execution.unroll else 1

    def _layer(self, tokens, shared, to_capture, read_BQ=None):
        """Return the function (hidden states, `_Depth`) -> (output, captured values) of a layer, for `jax.lax.scan`."""
        layer, execution = self.config.block.layer(self.config), self.config.execution
        gather_layer = None if self.is_initializing() else execution.gather_layer

        def apply(hidden_BTD, depth):
            # FSDP gathers one layer's weights, just before use.
            params = depth.params | shared
            params = params if gather_layer is None else gather_layer(params)
            queries, streams = None, tokens.streams
            if streams is not None:
                queries = streams.queries(hidden_BTD, is_last=read_BQ is not None)
                hidden_BTD = streams.content(hidden_BTD)
            elif read_BQ is not None:
                queries = Queries(jnp.take_along_axis(hidden_BTD, read_BQ[..., None], axis=1), read_BQ)
            variables = {"params": params} | taps.layer_variables(depth.masks)
            inputs = LayerInputs(hidden_BTD, tokens.visibility, depth.key, queries, tokens.positions, depth.number)
            if not to_capture:
                output = cast(jax.Array, layer.apply(variables, inputs))
                return taps.scale_layer(output, inputs.own, depth.masks), {}
            output, state = layer.apply(variables, inputs, mutable=[taps.CAPTURED])
            output = taps.scale_layer(output, inputs.own, depth.masks)
            values = {"hidden": output} | captures.layer_values(state)
            return output, {name: values[name] for name in to_capture}

        policy = POLICIES[execution.remat]
        if gather_layer is not None and policy is None:  # or every layer's weights would be kept whole
            policy = save_all_but_gathered
        if policy is None:
            return apply
        # XLA's CSE would merge recomputation with the forward pass and undo remat. In a loop it cannot: the backward
        # pass is another loop, where a barrier would only make XLA copy saved values before use.
        in_loop = read_BQ is None and not execution.unroll
        return jax.checkpoint(apply, policy=policy, prevent_cse=not in_loop)
