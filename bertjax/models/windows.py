"""Local layers in blocks of queries, each with only the keys that its window reaches.

Beltagy et al. (2020, arXiv 2004.05150, section 3.1) compute windows in such chunks. A block of queries meets its own
columns and a window to either side, so a row of T tokens has T times a few hundred scores, not T times T.
"""

from typing import cast

import jax
import jax.numpy as jnp

from bertjax.models.dropout import drops
from bertjax.models.kernels import AttentionInputs

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
