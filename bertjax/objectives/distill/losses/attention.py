"""Losses on attention: head by head for pairs of layers (Jiao et al., 2020; Aguilar et al., 2020), and relations of
queries, keys and values in MiniLMv2 (Wang et al., 2021, section 3, arXiv 2012.15828).
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from bertjax.models.directions import BIDIRECTIONAL
from bertjax.objectives.distill.losses import TeacherLoss, Values, is_token, same_example
from bertjax.objectives.distill.losses.layer_map import MappedLoss
from bertjax.objectives.losses import kl_divergence
from bertjax.runtime.setting import setting

COMPARISONS = SCORES, PROBABILITIES = ("scores", "probabilities")


@dataclasses.dataclass(frozen=True)
class AttentionMaps(MappedLoss):
    """Compare attention between equally numbered heads in pairs of layers, averaged over pairs and heads.

    Maps are recomputed from queries and keys, so this works with every attention implementation. Blocks whose maps
    have other terms too are refused.

    Attributes:
      compare: `scores`, mean squared difference of pre-softmax scores over the example's tokens (Jiao et al., 2020,
        equation 7, arXiv 1909.10351); or `probabilities`, KL divergence of each token's distribution (Aguilar et al.,
        2020, arXiv 1910.03723).
    """

    kind: str = dataclasses.field(default="attention", init=False)
    compare: str = setting(SCORES, choices=COMPARISONS)

    captures: ClassVar[tuple[str, ...]] = ("queries", "keys")

    def check(self, student, teacher):
        self.check_equal("heads", student, teacher, "kind=relations, or ")
        super().check(student, teacher)

    def reason_against(self, config):
        # Maps are computed from queries and keys only.
        more = {
            "fixed heads": config.block.fixed_heads,
            f"model.block.kind={config.block.kind}, which adds terms to attention": config.block.has_attention_terms,
            f"model.block.global_every={config.block.global_every}": config.block.global_every > 1,
            f"model.direction={config.direction}": config.direction != BIDIRECTIONAL,
        }
        reasons = [f"{name}; use kind=hidden" for name, is_set in more.items() if is_set]
        return super().reason_against(config) or next(iter(reasons), "")

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


@dataclasses.dataclass(frozen=True)
class Relations(TeacherLoss):
    """Compare token similarities in one layer of each model, computed from queries, keys and values separately.

    The vectors of all heads are concatenated and split again into relation heads, so student and teacher may differ in
    width, heads and depth. For each token, a relation head has a distribution over the example's tokens: the softmax
    over scaled dot products. The loss sums three KL divergences, each averaged over relation heads and tokens.

    Attributes:
      heads: number of relation heads; must divide both models' widths.
      student_layer, teacher_layer: layers to compare, counted from 1; 0 for the last one.
    """

    kind: str = dataclasses.field(default="relations", init=False)
    heads: int = setting(48, least=1)
    student_layer: int = setting(0, least=0)
    teacher_layer: int = setting(0, least=0)

    captures: ClassVar[tuple[str, ...]] = ("queries", "keys", "values")

    def pairs(self, student, teacher):
        pairs = ((self.student_layer or student.layers, self.teacher_layer or teacher.layers),)
        return self.possible(pairs, student, teacher)

    def reason_against(self, config):
        if config.context_width % self.heads:
            return f"width={config.context_width}, which heads={self.heads} does not divide; choose a common divisor"
        if config.block.fixed_heads:
            return "fixed heads, which have no queries and keys; use kind=hidden"
        return super().reason_against(config)

    def terms(self, student, teacher, batch, params, soft_weights):
        ((own_layer, target_layer),) = self.pairs(student.config, teacher.config)
        sees_BTT, total = same_example(batch), jnp.zeros(())
        for name in self.captures:
            own_BRTT = self._relations(student.of_heads(name, own_layer), sees_BTT)
            target_BRTT = self._relations(teacher.of_heads(name, target_layer), sees_BTT)
            losses_BRT = kl_divergence(target_BRTT, own_BRTT, temperature=1.0)
            total += jnp.sum(is_token(batch) * jnp.mean(losses_BRT, axis=1))
        return total, {}

    def _relations(self, vectors_BTHD: jax.Array, sees_BTT: jax.Array) -> jax.Array:
        """Return scaled dot products before the softmax, float32 [B, R, T, T]."""
        # Merge the heads and split again: relation heads need not match attention heads.
        vectors_BTRD = vectors_BTHD.reshape(*vectors_BTHD.shape[:2], self.heads, -1)
        scores_BRTT = jnp.einsum("bqrd,btrd->brqt", vectors_BTRD, vectors_BTRD) * vectors_BTRD.shape[-1] ** -0.5
        # Rows are packed: tokens in other examples get no probability.
        return jnp.where(sees_BTT[:, None], scores_BRTT, jnp.finfo(jnp.float32).min)
