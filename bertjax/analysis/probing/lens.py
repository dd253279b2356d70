"""Logit lens: predictions of the masked-LM head from the states after each layer.

The model's head reads every layer's states as if they were the last ones (nostalgebraist, 2020, "interpreting GPT: the
logit lens"; for masked models, the untrained case of Belrose et al., 2023, arXiv 2303.08112). In an encoder with a norm
after its last layer, that norm is applied to each layer's states first.
"""

import jax
import jax.numpy as jnp

from bertjax.models import taps
from bertjax.models.config import EncoderConfig
from bertjax.models.mixing import CAPTURES, encode_layers
from bertjax.models.model import Model
from bertjax.objectives.base import Arrays
from bertjax.objectives.losses import Sums
from bertjax.objectives.pretraining.mlm import MaskedLM, take_columns


def lens(objective: MaskedLM, encoder: EncoderConfig, params: dict, batch: Arrays) -> dict[str, Sums]:
    """Device: return sums over masked tokens and their number, for the embeddings and each layer; [L + 1].

    `accuracy`: whether the masked token is the most probable one. `reciprocal_rank`: 1 / rank, where the most probable
    token has rank 1 and equal logits share the best rank. `log_rank`: natural logarithm of the rank; its mean gives the
    geometric mean rank. `loss`: cross-entropy in nats.

    Args:
      objective: the model's masked-LM objective.
      encoder: the architecture.
      params: parameters with the roots `encoder` and `heads`.
      batch: the core batch with the objective's features.
    """
    model, variables = objective.model(encoder), {"params": params}
    columns_BK, labels_BK, weights_BK = (
        batch[f"{objective.term}_{name}_BK"] for name in ("positions", "labels", "weights")
    )
    hidden_LBTD, _ = model.apply(variables | CAPTURES, batch, method=encode_layers, mutable=[taps.CAPTURED])
    # Only masked positions are predicted: a head on all T tokens would cost T / K times as much.
    states_LBKD = jax.vmap(take_columns, in_axes=(0, None))(hidden_LBTD, columns_BK)
    is_last = jnp.arange(len(states_LBKD)) == encoder.layers

    def head(model: Model, state_BKD: jax.Array, is_last: jax.Array) -> jax.Array:
        if encoder.block.has_final_norm:  # the last states have already passed this norm
            state_BKD = jnp.where(is_last, state_BKD, model.encoder.final_norm(state_BKD))
        return model.head("mlm", state_BKD, model.word_VE)

    def sums(layer: tuple[jax.Array, jax.Array]) -> Arrays:
        scores = _scores(model.apply(variables, *layer, method=head), labels_BK)
        return {name: jnp.sum(value * weights_BK) for name, value in scores.items()}

    # One layer at a time: the logits of all layers at once would take L + 1 times the memory.
    totals = jax.lax.map(sums, (states_LBKD, is_last))
    return {name: (total_L, jnp.sum(weights_BK)) for name, total_L in totals.items()}


def _scores(logits_BKV: jax.Array, labels_BK: jax.Array) -> Arrays:
    of_label_BK1 = jnp.take_along_axis(logits_BKV, labels_BK[..., None], axis=-1)
    rank_BK = 1 + jnp.sum(logits_BKV > of_label_BK1, axis=-1)
    return {
        "accuracy": (jnp.argmax(logits_BKV, axis=-1) == labels_BK) * 1.0,
        "reciprocal_rank": 1 / rank_BK,
        "log_rank": jnp.log(rank_BK),
        "loss": jax.nn.logsumexp(logits_BKV, axis=-1) - of_label_BK1[..., 0],
    }
