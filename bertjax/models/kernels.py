"""Attention kernels that never materialize [B, H, T, T], and the rows and inputs that each one supports.

They match the plain implementation (`attention.attend`) up to rounding; `fused` also matches its
dropout. A kernel rejects every input that it does not support, see `AttentionInputs`.
"""

from typing import Literal, NamedTuple, cast

import jax
import jax.numpy as jnp

from bertjax.models.config import Execution
from bertjax.models.dropout import drops, seeds_of
from bertjax.models.dropout_words import GROUP, LONGEST_GROUP
from bertjax.models.layers import KEPT
from bertjax.models.visibility import Visibility

PLAIN, FUSED, SPLASH, CUDNN = ("plain", "fused", "splash", "cudnn")

# Head widths that evenly divide, or fill, a TPU lane tile.
HEAD_WIDTHS = 32, 64, 128
# Longest rows for which the gradients fit into the 16 MiB of VMEM on TPU v4.
LONGEST_FUSED = {"bfloat16": 8192, "float32": 4096}

# The last layer may compute only the positions that heads read: in short rows few enough for the plain implementation.
# In longer rows they are many, and a kernel is cheaper although it computes all T queries.
LONGEST_WITH_PLAIN_QUERIES = 2048
# Rows from this length on are computed in parts on a CPU. At 256 tokens nothing was gained.
SHORTEST_IN_PARTS = 512

# Below this, plain attention is as fast: on v5e the two forecasts are equal at 128 tokens.
SHORTEST_SPLASH = 256
# Rows are tiled by 128 lanes. A block of queries or keys spans the whole row, up to _LONGEST_BLOCK.
_LANES, _LONGEST_BLOCK = 128, 512


def implementation_at(execution: Execution, seq_len: int) -> str:
    """Return the requested kernel if it supports rows of this length, else `plain`."""
    requested = execution.attention
    tile = _LANES if seq_len <= LONGEST_GROUP else GROUP
    # Fall back by row length, not with an error: a run may have stages of several lengths.
    if requested == FUSED and (seq_len > LONGEST_FUSED[execution.dtype] or seq_len % tile):
        return PLAIN
    if requested == SPLASH and (seq_len < SHORTEST_SPLASH or seq_len % _LANES):
        return PLAIN
    return requested


class CannotCompute(ValueError):
    """An attention implementation does not support one of its inputs.

    Attributes:
      reason: the unsupported input, phrased to follow the implementation's name.
    """

    def __init__(self, implementation: str, reason: str):
        super().__init__(f"attention={implementation} {reason}; use attention={PLAIN}")
        self.reason = reason


class AttentionInputs(NamedTuple):
    """Everything that attention computes from. The plain implementation supports every field, each kernel only some.

    Add new inputs here: every kernel then rejects them until `_TAKES` lists them.

    Attributes:
      query_BQHD, key_BTHD, value_BTHD: per-head queries, and per-head keys and values for all tokens.
      visibility: see `Visibility`.
      rate: dropout rate for the probabilities; 0 without a key.
      key: dropout key; None for no dropout.
      bias_BHQT: float32, added to the scaled query-key products.
      fixed_heads: see `BertBlock`.
      columns_BQ: int, columns of the queries; None for all tokens.
      rank_BQ: int, see `Queries`.
    """

    query_BQHD: jax.Array
    key_BTHD: jax.Array
    value_BTHD: jax.Array
    visibility: Visibility
    rate: float = 0.0
    key: jax.Array | None = None
    bias_BHQT: jax.Array | None = None
    fixed_heads: tuple[str, ...] = ()
    columns_BQ: jax.Array | None = None
    rank_BQ: jax.Array | None = None


# Inputs and visibility fields that each kernel supports, in addition to the ones that all kernels support.
_BY_ALL = {"query_BQHD", "key_BTHD", "value_BTHD", "visibility", "examples_BT", "widest", "key", "columns_BQ"}
_TAKES = {FUSED: {"rate", "window"}, SPLASH: set(), CUDNN: {"window", "rank_BT"}}
_DESCRIPTIONS = {
    "rate": "dropout of attention (model.attention_dropout)",
    "window": "windows of local layers (model.block.window)",
    "rank_BT": "an order of tokens (model.direction)",
    "rank_BQ": "queries with an order of their own",
    "end_BT": "symbols that predicted tokens take the place of (objective.kind=permuted_mlm)",
    "bias_BHQT": "terms that are added to the products of attention, such as distances (model.block)",
    "fixed_heads": "heads with fixed maps (model.block.fixed_heads)",
}


def check_inputs(implementation: str, inputs: AttentionInputs) -> None:
    """Raise CannotCompute if a kernel does not support an input that is set, or heads of this number and width."""
    values = inputs._asdict() | inputs.visibility._asdict()
    # An input at its default has no effect: None, zero or an empty tuple.
    defaults = AttentionInputs._field_defaults | Visibility._field_defaults
    passed = {
        name
        for name, value in values.items()
        if (value is not None if defaults.get(name) is None else value != defaults[name])
    }
    if refused := sorted(passed - _BY_ALL - _TAKES[implementation]):
        reason = f"does not compute {' and '.join(_DESCRIPTIONS.get(name, name) for name in refused)}"
        raise CannotCompute(implementation, reason)
    heads, width = inputs.value_BTHD.shape[2:]
    if implementation == FUSED and (width not in HEAD_WIDTHS or heads * width % _LANES):
        reason = f"takes heads of width 32, 64 or 128 that fill tiles of 128, and these are {heads} of {width}"
        raise CannotCompute(implementation, reason)


def attend_by_kernel(implementation: str, inputs: AttentionInputs) -> jax.Array:
    """Return the context [B, Q, H, D / H], computed by a kernel.

    Kernels take all T queries. If only some are needed, the others are zeros and their results are discarded.

    Raises:
      CannotCompute: the kernel does not support an input.
    """
    check_inputs(implementation, inputs)
    kernel = {FUSED: attend_by_fused, SPLASH: attend_by_splash, CUDNN: attend_by_cudnn}[implementation]
    if inputs.columns_BQ is None:
        return kernel(inputs)
    rows_B1 = jnp.arange(len(inputs.columns_BQ))[:, None]
    query_BTHD = jnp.zeros_like(inputs.key_BTHD).at[rows_B1, inputs.columns_BQ].set(inputs.query_BQHD)
    return kernel(inputs._replace(query_BQHD=query_BTHD))[rows_B1, inputs.columns_BQ]


def attend_by_fused(inputs: AttentionInputs, interpret: bool = False) -> jax.Array:
    """Fused attention: returns the context [B, T, H, D / H], with the same draws as `attention_dropout`.

    Args:
      inputs: single-device arrays of all T queries, since the partitioner cannot split a kernel.
      interpret: run the kernel in interpret mode, without its device, for tests.
    """
    from bertjax.models.fused import Plan, attend_fused

    (rows, tokens, heads, width), visibility = inputs.query_BQHD.shape, inputs.visibility
    window = visibility.window
    if inputs.key is None or not drops(inputs.rate):
        rate, seeds_BH2 = 0.0, jnp.zeros((rows, heads, 2), jnp.int32)
    else:
        rate, seeds_BH2 = inputs.rate, seeds_of(inputs.key, rows, heads)
    context_BTD = attend_fused(
        Plan(width, rate, window is not None, interpret),
        *(states.reshape(rows, tokens, -1) for states in inputs[:3]),
        # Pallas for TPU tiles the last two axes; an axis of length 1 before the last lets a block hold one row.
        visibility.examples_BT[:, None],
        seeds_BH2.reshape(rows, 1, 2 * heads),
        jnp.asarray(0 if window is None else window, jnp.int32).reshape(1, 1),
    )
    return context_BTD.reshape(inputs.query_BQHD.shape)


def attend_by_splash(inputs: AttentionInputs, interpret: bool = False) -> jax.Array:
    """Splash attention: returns the context [B, T, H, D / H], with examples separated by segment ids.

    This is JAX's Pallas kernel for TPU v4 and later, a blockwise softmax as in Dao et al., 2022, arXiv 2205.14135.

    Args:
      inputs: single-device arrays of all T queries, since the partitioner cannot split a kernel.
      interpret: run the kernel in interpret mode, without a TPU, for tests.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    _, seq_len, heads, width = inputs.query_BQHD.shape
    block = _LONGEST_BLOCK if seq_len % _LONGEST_BLOCK == 0 else _LANES if seq_len > _LONGEST_BLOCK else seq_len
    # Heads narrower than a lane tile would be padded to it, so put the sequence along the lanes instead.
    layout = splash.QKVLayout.HEAD_DIM_MINOR if width % _LANES == 0 else splash.QKVLayout.SEQ_MINOR
    blocks = splash.BlockSizes(
        block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block, use_fused_bwd_kernel=True,
        q_layout=layout, k_layout=layout, v_layout=layout,
    )  # fmt: skip
    everything = masks.MultiHeadMask([masks.FullMask((seq_len, seq_len))] * heads)
    kernel = splash.make_splash_mha_single_device(
        everything, block_sizes=blocks, residual_checkpoint_name=KEPT, interpret=interpret
    )

    def attend(query_HTD, key_HTD, value_HTD, examples_T) -> jax.Array:
        segments = splash.SegmentIds(examples_T, examples_T)
        return cast(jax.Array, kernel(query_HTD, key_HTD, value_HTD, segment_ids=segments))

    states = inputs.query_BQHD * width**-0.5, inputs.key_BTHD, inputs.value_BTHD
    query, key, value = (jnp.swapaxes(x, 1, 2) for x in states)
    return jnp.swapaxes(jax.vmap(attend)(query, key, value, inputs.visibility.examples_BT), 1, 2)


def attend_by_cudnn(inputs: AttentionInputs, implementation: Literal["cudnn", "xla"] = "cudnn") -> jax.Array:
    """cuDNN fused attention: returns the context [B, T, H, D / H]. Packed examples are separated by a full [T, T] mask.

    Args:
      inputs: bfloat16 or float16, all T queries.
      implementation: `xla` computes the same call on any backend, for tests.
    """
    mask_B1TT = inputs.visibility.mask_BQT()[:, None]
    return jax.nn.dot_product_attention(*inputs[:3], mask=mask_B1TT, implementation=implementation)
