"""Replace an encoder's internal states from outside, for analysis.

    with with_hidden(hidden_BTD):
        logits = model.apply(variables, batch, method=objective.logits)

Modules are not modified: Flax intercepts their calls inside the `with` block.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.embeddings import EmbeddingLayer
from bertjax.models.encoder import Encoded, Encoder


def with_embeddings(embedded_BTE: jax.Array) -> Any:
    """Context in which every embedding layer outputs `embedded_BTE`, whatever the tokens are."""

    def replace(next_function, arguments, keywords, context):
        if isinstance(context.module, EmbeddingLayer) and context.method_name == "__call__":
            return embedded_BTE
        return next_function(*arguments, **keywords)

    # Intercept rather than subclass: any model with an `EmbeddingLayer` works.
    return nn.intercept_methods(replace)


def with_hidden(hidden_BTD: jax.Array) -> Any:
    """Context in which every encoder outputs these states for all tokens, skipping its layers.

    The encoder's final norm, if any, and the pooler still apply (early exit, or "logit lens").
    """

    def replace(next_function, arguments, keywords, context):
        if isinstance(context.module, Encoder) and context.method_name == "__call__":
            return _ended(context.module, hidden_BTD, **keywords)
        return next_function(*arguments, **keywords)

    return nn.intercept_methods(replace)


def _ended(encoder, hidden_BTD, *, segments_BT, examples_BT, summary_positions_BN, read_BK=None, **others) -> Encoded:
    """Do what `Encoder.__call__` does after its layers; its arguments are passed by name, as `Model` does."""
    block = encoder.config.block
    if block.has_final_norm:
        hidden_BTD = encoder.final_norm(hidden_BTD)
    texts_BT = block.texts(examples_BT, segments_BT)
    columns_BM = block.summary_columns(encoder.config, texts_BT, summary_positions_BN)
    summary_BMD = jnp.take_along_axis(hidden_BTD, columns_BM[..., None], axis=1)
    pooled_BND = encoder.pool(block.summaries(summary_BMD, texts_BT))
    if read_BK is not None:
        hidden_BTD = jnp.take_along_axis(hidden_BTD, read_BK[..., None], axis=1)
    return Encoded(hidden_BTD, pooled_BND)
