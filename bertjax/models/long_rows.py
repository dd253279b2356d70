"""Plain attention of long rows: on a CPU one row and head after another, on accelerators all at once.

The scores of all heads, [B, H, Q, T], are larger than the cache of a CPU, which then waits for memory. In parts they
stay in it, and of local layers only those of keys that a block of queries can reach are computed: Beltagy et al. (2020,
arXiv 2004.05150, section 3.1) compute windows in such chunks. A block of queries meets its own columns and a window to
either side, so a row of T tokens has T times a few hundred scores, not T times T.
"""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp

from bertjax.models.config import EncoderConfig
from bertjax.models.dropout import attention_dropout, drops
from bertjax.models.kernels import AttentionInputs
from bertjax.models.layers import precision_of
from bertjax.models.visibility import visible

# Queries of a block. With ModernBERT's window of 64, each meets twice as many keys.
_BLOCK = 128
# An example that no token of the row has, for columns beyond its ends.
_NOWHERE = -1


def has_blocks(inputs: AttentionInputs) -> bool:
    """Return whether `in_blocks` computes these inputs, and at most half of their scores."""
    window, tokens = inputs.visibility.widest, inputs.key_BTHD.shape[1]
    if not isinstance(window, int) or window > _BLOCK:
        return False
    drawn = inputs.key is not None and drops(inputs.rate)
    others = inputs.bias_BHQT, inputs.visibility.rank_BT, inputs.columns_BQ
    is_divisible = tokens % _BLOCK == 0 and 2 * (_BLOCK + 2 * window) <= tokens
    return is_divisible and not drawn and all(each is None for each in others)


def in_blocks(inputs: AttentionInputs) -> AttentionInputs:
    """Return inputs with the same context, in which each block of queries is a row with its own keys: [B blocks, ...].

    The queries are in the middle of their keys, and have columns there, so distances and the window stay as they were.
    """
    window, (_, tokens, *of_head) = cast(int, inputs.visibility.widest), inputs.key_BTHD.shape

    def reached(values: jax.Array, beyond: int = 0) -> jax.Array:
        # The end of the block before, the block, and the start of the one after: three views, so that the gradient is
        # their sum, and not one of whole rows for each block.
        blocks = values.reshape(values.shape[0], tokens // _BLOCK, _BLOCK, *values.shape[2:])
        nothing = jnp.full_like(blocks[:, :1, :window], beyond)
        before = jnp.concatenate([nothing, blocks[:, :-1, _BLOCK - window :]], axis=1)
        after = jnp.concatenate([blocks[:, 1:, :window], nothing], axis=1)
        return jnp.concatenate([before, blocks, after], axis=2).reshape(-1, _BLOCK + 2 * window, *values.shape[2:])

    queries = inputs.query_BQHD.reshape(-1, _BLOCK, *of_head)
    columns_BQ = jnp.broadcast_to(window + jnp.arange(_BLOCK), queries.shape[:2])
    visibility = inputs.visibility._replace(examples_BT=reached(inputs.visibility.examples_BT, _NOWHERE))
    return AttentionInputs(
        queries, reached(inputs.key_BTHD), reached(inputs.value_BTHD), visibility, columns_BQ=columns_BQ
    )


def context_of(
    config: EncoderConfig, inputs: AttentionInputs, attend_plainly: Callable[..., tuple[jax.Array, Any]]
) -> jax.Array:
    """Return the context [B, Q, H, D / H], up to rounding that of `attend_plainly`.

    Args:
      config, inputs: the encoder and what its attention reads.
      attend_plainly: `attention.attend_plainly`.
    """
    # Terms that are added to the scores are in memory as a whole anyway. `dots` saves products without a batch, and the
    # ones below have none: it would keep the scores of all heads and layers.
    if inputs.fixed_heads or inputs.bias_BHQT is not None or config.execution.remat == "dots":
        return attend_plainly(inputs)[0]

    def whole() -> jax.Array:
        return attend_plainly(inputs, _by_head)[0]

    def local() -> jax.Array:
        blocks = attend_plainly(in_blocks(inputs), _by_head)[0]
        return blocks.reshape(*inputs.query_BQHD.shape[:3], -1)

    def on_cpu() -> jax.Array:
        if not has_blocks(inputs):
            return whole()
        # All layers are one program, which holds both kinds.
        is_local = jnp.asarray(inputs.visibility.window) <= cast(int, inputs.visibility.widest)
        return jax.lax.cond(is_local, local, whole)

    return jax.lax.platform_dependent(cpu=on_cpu, default=lambda: attend_plainly(inputs)[0])


def _by_head(
    query_BQHC, key_BTHC, value_BTHC, mask_BQT, dropout_rate, seeds_BH2, _, columns_BQ
) -> tuple[jax.Array, Any]:
    """Return the context of `attention.attend`, whose arguments these are, without a bias, and no probabilities."""
    rows, queries, heads, width = query_BQHC.shape
    scale, options = width**-0.5, {"precision": precision_of(key_BTHC.dtype)}

    def by_head(array: jax.Array) -> jax.Array:  # [B, N, H, C] -> [B H, N, C]
        return jnp.swapaxes(array, 1, 2).reshape(rows * heads, array.shape[1], array.shape[3])

    def one(inputs) -> jax.Array:
        number, query_QC, key_TC, value_TC, seeds_2 = inputs
        row = number // heads
        # Products of matrices: XLA for CPU multiplies batches of them, even of one, at a fraction of the speed.
        logits_QT = jnp.matmul(query_QC * scale, key_TC.T, **options)
        kept_QT = jax.nn.softmax(visible(logits_QT, mask_BQT[row])).astype(value_TC.dtype)
        if seeds_2 is not None:
            columns_1Q = None if columns_BQ is None else columns_BQ[row][None]
            kept_QT = attention_dropout(kept_QT[None, None], dropout_rate, seeds_2[None, None], columns_1Q)[0, 0]
        return jnp.matmul(kept_QT, value_TC, **options)

    states = map(by_head, (query_BQHC, key_BTHC, value_BTHC))
    seeds = None if seeds_BH2 is None else seeds_BH2.reshape(-1, 2)
    # Backward, scores are computed once more, which is faster than to read them from memory.
    forgetting = jax.checkpoint(one, prevent_cse=False)  # backward is another loop, so nothing can be merged
    contexts = jax.lax.map(forgetting, (jnp.arange(rows * heads), *states, seeds))
    return jnp.swapaxes(contexts.reshape(rows, heads, queries, value_BTHC.shape[3]), 1, 2), None
