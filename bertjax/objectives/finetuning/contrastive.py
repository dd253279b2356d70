"""Sentence embeddings from pairs alone: the other texts of the batch are the negatives.

Henderson et al. (2017, arXiv 1705.00652, section 4.4) with a temperature, as in supervised SimCSE (Gao et al., 2021,
arXiv 2104.08821, section 4).
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from bertjax.errors import UserError
from bertjax.mesh import gather_rows, shard_index
from bertjax.models.pooling import l2_normalize
from bertjax.objectives.finetuning.embeddings import EmbeddingObjective
from bertjax.objectives.losses import classification_term


@dataclasses.dataclass(frozen=True)
class EmbeddingContrastive(EmbeddingObjective):
    """Each first text finds its second one among those of the whole batch, by cosine / temperature.

    Pairs need no label; where they have numbers, the cosine is correlated with them. The metric `accuracy` is how often
    the right text is found; it follows from the size of the batch, as the loss does.

    Attributes:
      temperature: divides the cosine.
    """

    temperature: float = 0.05
    needs_global_batch: ClassVar[bool] = True

    def __post_init__(self):
        if not self.temperature > 0.0:
            raise UserError(f"objective.temperature={self.temperature} must be above 0; 0.05 is usual")

    def terms(self, module, params, frozen, batch, key, train):
        first_BPD, second_BPD = module.apply({"params": params}, batch, key if train else None)
        width, weights = first_BPD.shape[-1], batch["weights_BP"].reshape(-1)
        first, second = (l2_normalize(vectors.reshape(-1, width)) for vectors in (first_BPD, second_BPD))
        # Cosines over a temperature reach 20: a product in bfloat16 would lose a tenth of a nat.
        cosines = jnp.einsum("pd,qd->pq", first, gather_rows(second), precision=jax.lax.Precision.HIGHEST)
        logits = jnp.where(gather_rows(weights) > 0, cosines / self.temperature, jnp.finfo(jnp.float32).min)
        own = shard_index() * len(weights) + jnp.arange(len(weights))
        loss, right = classification_term(logits, own, weights)
        return {self.term: loss}, {"accuracy": (right, weights.sum())}
