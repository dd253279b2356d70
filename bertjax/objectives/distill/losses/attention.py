"""Attention map losses, head by head for pairs of layers (Jiao et al., 2020; Aguilar et al., 2020)."""

import dataclasses

import jax
import jax.numpy as jnp

from bertjax.models.config import EncoderConfig
from bertjax.models.directions import BIDIRECTIONAL
from bertjax.objectives.distill.losses.base import Values, is_token, same_example
from bertjax.objectives.distill.losses.layer_map import MappedLoss
from bertjax.objectives.losses import kl_divergence
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting

COMPARISONS = SCORES, PROBABILITIES = ("scores", "probabilities")


@dataclasses.dataclass(frozen=True)
class AttentionMaps(MappedLoss):
    """Compare attention between equally numbered heads in pairs of layers, averaged over pairs and heads.

    Maps are recomputed from queries and keys, so this works with every attention implementation.

    Attributes:
      compare: `scores`, mean squared difference of pre-softmax scores over the example's tokens (Jiao et al., 2020,
        equation 7, arXiv 1909.10351); or `probabilities`, KL divergence of each token's distribution (Aguilar et al.,
        2020, arXiv 1910.03723).
    """

    kind: str = dataclasses.field(default="attention", init=False)
    compare: str = setting(SCORES, choices=COMPARISONS)

    @property
    def captures(self):
        return ("queries", "keys")

    def check(self, student, teacher):
        if student.heads != teacher.heads:
            raise UserError(
                f"the teacher has heads={teacher.heads} and the student {student.heads}, so that the teacher loss "
                f"'attention' cannot compare them; use kind=relations, or set model.heads={teacher.heads}"
            )
        for name, config in (("student", student), ("teacher", teacher)):
            if reason := _not_from_queries(config):
                raise UserError(
                    f"the {name} has {reason}, and the teacher loss 'attention' computes maps from queries and keys "
                    "only; use kind=hidden"
                )

    def terms(self, student, teacher, batch, params, soft_weights):
        pairs, total = self.pairs(student.config, teacher.config), jnp.zeros(())
        sees_B1TT = same_example(batch)[:, None]
        for own_layer, target_layer in pairs:
            own_BHTT, target_BHTT = _scores(student, own_layer), _scores(teacher, target_layer)
            if self.compare == SCORES:
                # Rows are packed: pairs of tokens from different examples have scores, but no attention.
                squares = jnp.where(sees_B1TT, own_BHTT - target_BHTT, 0.0) ** 2
                losses_BHT = jnp.sum(squares, axis=-1) / jnp.maximum(jnp.sum(sees_B1TT, axis=-1), 1)
            else:
                # Other examples get the lowest score in both models, so they add nothing to the divergence.
                hidden = jnp.finfo(jnp.float32).min
                own_BHTT, target_BHTT = (jnp.where(sees_B1TT, scores, hidden) for scores in (own_BHTT, target_BHTT))
                losses_BHT = kl_divergence(target_BHTT, own_BHTT, temperature=1.0)
            # Average over heads, sum over tokens; the step divides by the number of tokens.
            total += jnp.sum(is_token(batch) * jnp.mean(losses_BHT, axis=1))
        return total / len(pairs), {}


def _scores(model: Values, layer: int) -> jax.Array:
    """Return scaled query-key products, float32 [B, H, T, T]."""
    queries_BTHD, keys_BTHD = model.of_heads("queries", layer), model.of_heads("keys", layer)
    return jnp.einsum("bqhd,bthd->bhqt", queries_BTHD, keys_BTHD) * queries_BTHD.shape[-1] ** -0.5


def _not_from_queries(config: EncoderConfig) -> str:
    """Return the setting that makes attention depend on more than queries and keys; empty if there is none."""
    if config.block.fixed_heads:
        return "fixed heads"
    if config.block.global_every > 1:
        return f"model.block.global_every={config.block.global_every}"
    return "" if config.direction == BIDIRECTIONAL else f"model.direction={config.direction}"
