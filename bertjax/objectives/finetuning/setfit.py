"""SetFit: few labeled examples train the encoder as pairs, and the head on its embeddings (Tunstall et al., 2022).

arXiv 2209.11055, section 3. Two texts of one class are pulled together (cosine 1), two of different classes are pushed
apart (cosine 0). n texts give about n^2 / 2 pairs, so eight texts of a class teach the encoder more than their labels
alone. The classifier does not change the encoder.
"""

import dataclasses
from typing import cast

import jax
import jax.numpy as jnp

from bertjax.models.dropout import split
from bertjax.models.pooling import l2_normalize
from bertjax.objectives.base import Arrays, Objective
from bertjax.objectives.finetuning.base import LATE
from bertjax.objectives.finetuning.labels import Classification
from bertjax.objectives.wrapper import Wrapper
from bertjax.runtime.devices import gather_rows, shard_index
from bertjax.runtime.errors import UserError

TOGETHER, APART = "together", "apart"


@dataclasses.dataclass(frozen=True)
class SetFit(Wrapper):
    """A classification whose encoder learns from pairs only. Terms: `together`, `apart`, and those of the objective.

    Every two examples of a batch are a pair. `together` is the mean squared error over pairs of one class, `apart` that
    over the others: each kind has half of the weight, as in the authors' sampling.
    """

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.objective, Classification) or self.objective.pooling == LATE:
            raise UserError(
                "objective.kind=setfit compares examples by their class and one vector each; set "
                "objective.objective.kind=classification, with objective.objective.pooling=mean or cls"
            )

    @property
    def traits(self):
        return dataclasses.replace(self.objective.traits, needs_global_batch=True)

    def terms(self, model, params, frozen, batch, key, train, taps=None):
        return Objective.terms(self, model, params, frozen, batch, key, train, taps)  # from the `logits` below

    def logits(self, model, batch, key=None):
        """Return logits_BNC, which have no gradient with respect to the encoder, and the vectors [B, N, D]."""
        encoder_key, head_key = (None, None) if key is None else split(key, 2)
        objective = cast(Classification, self.objective)
        pooled_BND = objective.pooled(model, batch, encoder_key)
        return objective.of_head(model, jax.lax.stop_gradient(pooled_BND), head_key), pooled_BND

    def weights(self, batch):
        return super().weights(batch) | {term: jnp.sum(pairs_PQ) for term, pairs_PQ in _pairs(batch).items()}

    def terms_of(self, logits, batch):
        logits_BNC, pooled_BND = logits
        terms, metrics = super().terms_of(logits_BNC, batch)
        vectors_PD = l2_normalize(pooled_BND.reshape(-1, pooled_BND.shape[-1]).astype(jnp.float32))
        cosines_PQ = jnp.einsum("pd,qd->pq", vectors_PD, gather_rows(vectors_PD), precision=jax.lax.Precision.HIGHEST)
        pairs = _pairs(batch)
        together = jnp.sum(pairs[TOGETHER] * (1.0 - cosines_PQ) ** 2)
        return terms | {TOGETHER: together, APART: jnp.sum(pairs[APART] * cosines_PQ**2)}, metrics

    def loss_weights(self, terms, step):
        return {**super().loss_weights(terms, step), TOGETHER: 0.5, APART: 0.5}


def _pairs(batch: Arrays) -> Arrays:
    """Device: return {`together`, `apart`}: 1 for each pair of an example of this shard and one of the batch, [P, Q].

    Slots without a labeled example are in no pair, and no example is one with itself.
    """
    labels_P, weights_P = batch["labels_BN"].reshape(-1), batch["weights_BN"].reshape(-1)
    own_P = shard_index() * len(labels_P) + jnp.arange(len(labels_P))
    weights_PQ = weights_P[:, None] * gather_rows(weights_P)
    weights_PQ *= own_P[:, None] != jnp.arange(weights_PQ.shape[1])
    is_same_PQ = labels_P[:, None] == gather_rows(labels_P)
    return {TOGETHER: weights_PQ * is_same_PQ, APART: weights_PQ * ~is_same_PQ}
