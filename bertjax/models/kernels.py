"""Implementations of attention that never hold [B, H, T, T], and which rows and inputs each can compute.

They compute what the plain implementation (`attention.attend`) does, up to rounding, and with dropout where they are
in `WITH_DROPOUT`. A kernel refuses every input that it does not take, see `AttentionInputs`.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bertjax.models.config import Execution
from bertjax.models.dropout import GROUP, LONGEST_GROUP, drops, seeds_of
from bertjax.models.remat import KEPT
from bertjax.models.visibility import Visibility

PLAIN, FUSED, TRITON, SPLASH, CUDNN = ("plain", "fused", "triton", "splash", "cudnn")
# Implementations with dropout, local layers, and heads of the same widths: one for TPU, one for GPU.
WITH_DROPOUT = FUSED, TRITON

# Of a tile of lanes on TPU, and of a block in Triton, heads of these widths take a whole share.
HEAD_WIDTHS = 32, 64, 128
# The longest row whose gradients fit into the 16 MiB of v4's VMEM.
LONGEST_FUSED = {"bfloat16": 8192, "float32": 4096}

# The positions of a last layer that is not read whole are few queries for the plain implementation. In longer rows they
# are many, and a kernel, which takes all T, is cheaper.
LONGEST_WITH_PLAIN_QUERIES = 2048

# Shorter rows are as fast by the plain implementation: on v5e the forecasts of the two are equal at 128 tokens.
SHORTEST_SPLASH = 256
# Rows are tiled by 128 lanes; a block of queries or keys is as long as the row, up to _LONGEST_BLOCK.
_LANES, _LONGEST_BLOCK = 128, 512


def implementation_at(execution: Execution, seq_len: int) -> str:
    """Return the implementation for rows of a length: `plain` for those that the requested kernel does not take."""
    requested = execution.attention
    tile = _LANES if seq_len <= LONGEST_GROUP else GROUP
    if requested == FUSED and (seq_len > LONGEST_FUSED[execution.dtype] or seq_len % tile):
        return PLAIN
    if requested == TRITON and seq_len % _LANES:
        return PLAIN
    if requested == SPLASH and (seq_len < SHORTEST_SPLASH or seq_len % _LANES):
        return PLAIN
    return requested


class CannotCompute(ValueError):
    """An implementation of attention does not take one of its inputs.

    Attributes:
      reason: what it does not take; it follows the name of the implementation.
    """

    def __init__(self, implementation: str, reason: str):
        super().__init__(f"attention={implementation} {reason}; use attention={PLAIN}")
        self.reason = reason


class AttentionInputs(NamedTuple):
    """All that attention computes from. The plain implementation takes every field, each kernel only some of them.

    A new field belongs here, so that every kernel refuses it until `_TAKES` lists it.

    Attributes:
      query_BQHD, key_BTHD, value_BTHD: heads of the queries, and of all tokens.
      visibility: see `Visibility`.
      rate: of dropout of the probabilities; 0 without a key.
      key: for dropout; None for no dropout.
      bias_BHQT: float32, added to the products of queries and keys.
      fixed_heads: see `EncoderConfig`.
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


# What each kernel takes of the inputs and of their visibility, in addition to what all of them take.
_BY_ALL = {"query_BQHD", "key_BTHD", "value_BTHD", "visibility", "examples_BT", "key", "columns_BQ"}
_TAKES = {FUSED: {"rate", "window"}, TRITON: {"rate", "window"}, SPLASH: set(), CUDNN: {"window", "rank_BT"}}
_DESCRIPTIONS = {
    "rate": "dropout of attention (model.attention_dropout)",
    "window": "windows of local layers (model.window)",
    "rank_BT": "an order of tokens (model.direction)",
    "rank_BQ": "queries with an order of their own",
    "bias_BHQT": "terms of distances (model.positions=relative)",
    "fixed_heads": "heads with fixed maps (model.fixed_heads)",
}


def check_inputs(implementation: str, inputs: AttentionInputs) -> None:
    """Raise CannotCompute if a kernel does not take an input that is passed, or heads of this number and width."""
    values = inputs._asdict() | inputs.visibility._asdict()
    # The default of an input is that it has no effect: None, or an empty number or tuple.
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
    if implementation in WITH_DROPOUT and (reason := reason_against_heads(implementation, heads * width, heads)):
        raise CannotCompute(implementation, reason)


def attend_by_kernel(implementation: str, inputs: AttentionInputs) -> jax.Array:
    """Return the context [B, Q, H, D / H] by an implementation of this file.

    If the queries are not all tokens, the others are computed as well, from zeros.

    Raises:
      CannotCompute: the implementation does not take an input.
    """
    check_inputs(implementation, inputs)
    if implementation in WITH_DROPOUT:
        kernel = functools.partial(attend_with_dropout, rate=inputs.rate, key=inputs.key, implementation=implementation)
    else:
        kernel = {SPLASH: attend_by_splash, CUDNN: attend_by_cudnn}[implementation]
    others = inputs.key_BTHD, inputs.value_BTHD, inputs.visibility
    if inputs.columns_BQ is None:
        return kernel(inputs.query_BQHD, *others)
    rows_B1 = jnp.arange(len(inputs.columns_BQ))[:, None]
    query_BTHD = jnp.zeros_like(inputs.key_BTHD).at[rows_B1, inputs.columns_BQ].set(inputs.query_BQHD)
    return kernel(query_BTHD, *others)[rows_B1, inputs.columns_BQ]


def reason_against_heads(implementation: str, width: int, heads: int) -> str:
    """Return why a kernel of `WITH_DROPOUT` cannot compute D split over H heads; empty if it can."""
    is_tiled = implementation == FUSED
    if width // heads not in HEAD_WIDTHS or (is_tiled and width % _LANES):
        filling = " that fill tiles of 128" if is_tiled else ""
        return f"takes heads of width 32, 64 or 128{filling}, and these are {heads} of {width // heads}"
    return ""


def attend_with_dropout(
    query_BTHD: jax.Array,
    key_BTHD: jax.Array,
    value_BTHD: jax.Array,
    visibility: Visibility,
    rate: float = 0.0,
    key: jax.Array | None = None,
    implementation: str = FUSED,
    interpret: bool = False,
) -> jax.Array:
    """Return the context [B, T, H, D / H] by a kernel of `WITH_DROPOUT`, whose draws are those of `attention_dropout`.

    Args:
      query_BTHD, key_BTHD, value_BTHD: arrays of one device, since no partitioner can split a kernel.
      visibility: without ranks.
      rate, key: of dropout; no key for none.
      interpret: run the kernel's program without its device, for tests.

    Raises:
      CannotCompute: the kernel does not take the visibility, rows of this length, or heads of this width.
    """
    if implementation == FUSED:
        from bertjax.models.fused import attend_fused as attend
    else:
        from bertjax.models.triton_attention import attend_triton as attend

    check_inputs(implementation, AttentionInputs(query_BTHD, key_BTHD, value_BTHD, visibility, rate, key))
    rows, tokens, heads, _ = query_BTHD.shape
    if tokens % _LANES:
        reason = f"takes rows of a multiple of {_LANES} tokens, and these have {tokens}"
        raise CannotCompute(implementation, reason)
    if key is None or not drops(rate):
        rate, seeds_BH2 = 0.0, jnp.zeros((rows, heads, 2), jnp.int32)
    else:
        seeds_BH2 = seeds_of(key, rows, heads)
    query_BTD, key_BTD, value_BTD = (x.reshape(rows, tokens, -1) for x in (query_BTHD, key_BTHD, value_BTHD))
    context_BTD = attend(
        query_BTD, key_BTD, value_BTD, visibility.examples_BT, seeds_BH2, visibility.window, rate, KEPT, interpret
    )
    return context_BTD.reshape(query_BTHD.shape)


def attend_by_splash(
    query_BTHD: jax.Array, key_BTHD: jax.Array, value_BTHD: jax.Array, visibility: Visibility, interpret: bool = False
) -> jax.Array:
    """Splash attention (JAX's Pallas kernel for TPU v4 and later, a blockwise softmax as in Dao et al., 2022,
    arXiv 2205.14135), with examples separated by segment ids. Returns the context, [B, T, H, D / H].

    Args:
      query_BTHD, key_BTHD, value_BTHD: arrays of one device, since no partitioner can split a kernel.
      visibility: without window and ranks.
      interpret: run the kernel's program without a TPU, for tests.

    Raises:
      CannotCompute: the visibility has a window or ranks.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    check_inputs(SPLASH, AttentionInputs(query_BTHD, key_BTHD, value_BTHD, visibility))
    _, seq_len, heads, width = query_BTHD.shape
    block = _LONGEST_BLOCK if seq_len % _LONGEST_BLOCK == 0 else _LANES if seq_len > _LONGEST_BLOCK else seq_len
    # A head narrower than a tile of lanes is padded to the tile unless the sequence is along the lanes.
    layout = splash.QKVLayout.HEAD_DIM_MINOR if width % _LANES == 0 else splash.QKVLayout.SEQ_MINOR
    blocks = splash.BlockSizes(
        block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block, use_fused_bwd_kernel=True,
        q_layout=layout, k_layout=layout, v_layout=layout,
    )  # fmt: skip
    everything = masks.MultiHeadMask([masks.FullMask((seq_len, seq_len))] * heads)
    kernel = splash.make_splash_mha_single_device(
        everything, block_sizes=blocks, residual_checkpoint_name=KEPT, interpret=interpret
    )

    def attend(query_HTD, key_HTD, value_HTD, examples_T):
        return kernel(query_HTD, key_HTD, value_HTD, segment_ids=splash.SegmentIds(examples_T, examples_T))

    per_head = (jnp.swapaxes(x, 1, 2) for x in (query_BTHD * width**-0.5, key_BTHD, value_BTHD))
    return jnp.swapaxes(jax.vmap(attend)(*per_head, visibility.examples_BT), 1, 2)


def attend_by_cudnn(
    query_BTHD: jax.Array,
    key_BTHD: jax.Array,
    value_BTHD: jax.Array,
    visibility: Visibility,
    implementation: str = "cudnn",
) -> jax.Array:
    """Return the context [B, T, H, D / H] by cuDNN's fused attention, which respects packing only by a full mask.

    Args:
      query_BTHD, key_BTHD, value_BTHD: bfloat16 or float16.
      implementation: `xla` computes the same call on any backend, for tests.
    """
    mask_B1TT = visibility.mask_BQT()[:, None]
    return jax.nn.dot_product_attention(query_BTHD, key_BTHD, value_BTHD, mask=mask_B1TT, implementation=implementation)
