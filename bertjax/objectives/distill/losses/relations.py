"""MiniLMv2: query, key and value relations (Wang et al., 2021, section 3, arXiv 2012.15828)."""

import dataclasses

import jax
import jax.numpy as jnp

from bertjax.models.config import EncoderConfig
from bertjax.objectives.distill.losses.base import TeacherLoss, is_token, same_example
from bertjax.objectives.losses import kl_divergence
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting

_NAMES = ("queries", "keys", "values")


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

    @property
    def captures(self):
        return _NAMES

    def pairs(self, student, teacher):
        return ((self.student_layer or student.layers, self.teacher_layer or teacher.layers),)

    def check(self, student: EncoderConfig, teacher: EncoderConfig):
        for name, config, layer in (
            ("student", student, self.student_layer),
            ("teacher", teacher, self.teacher_layer),
        ):
            if (width := config.context_width) % self.heads:
                raise UserError(
                    f"heads={self.heads} of the teacher loss 'relations' does not divide the width={width} of "
                    f"the {name}; choose a divisor of the widths of both models"
                )
            if layer > config.layers:
                raise UserError(
                    f"{name}_layer={layer} of the teacher loss 'relations' exceeds the {config.layers} layers of the "
                    f"{name}; lower it, 0 is the last layer"
                )
            if config.block.fixed_heads:
                raise UserError(
                    f"the {name} has fixed heads, which have no queries and keys for the teacher loss 'relations'; use "
                    "kind=hidden"
                )

    def terms(self, student, teacher, batch, params, soft_weights):
        ((own_layer, target_layer),) = self.pairs(student.config, teacher.config)
        sees_BTT, total = same_example(batch), jnp.zeros(())
        for name in _NAMES:
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
