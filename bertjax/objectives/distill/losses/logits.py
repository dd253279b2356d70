"""Soft targets: learn from the teacher's logits (Hinton et al., 2015, section 2, arXiv 1503.02531)."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from bertjax.objectives.distill.losses.base import TeacherLoss
from bertjax.objectives.losses import kl_divergence
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting

COMPARISONS = KL, MSE = ("kl", "mse")

# Padding and other examples have the lowest float as logit; exclude them from means.
_LOWEST = -1e30


@dataclasses.dataclass(frozen=True)
class SoftLogits(TeacherLoss):
    """Compare the logits of every prediction. Metric: `agreement`, how often both models rank the same answer first.

    Attributes:
      compare: `kl`, KL divergence times the squared temperature; or `mse`, mean squared difference of the logits (Ba &
        Caruana, 2014, arXiv 1312.6184; Tang et al., 2019, arXiv 1903.12136). A regression has one logit and needs
        `mse`.
      temperature: divides both models' logits in `kl`.
    """

    kind: str = dataclasses.field(default="logits", init=False)
    compare: str = setting(KL, choices=COMPARISONS)
    temperature: float = setting(1.0, above=0)
    needs_logits: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        if self.compare == MSE and self.temperature != 1.0:
            raise UserError(
                f"temperature={self.temperature} has no effect with compare=mse; leave it out, or set compare=kl"
            )

    def weight(self, batch, soft_weights):
        return jnp.sum(soft_weights)

    def terms(self, student, teacher, batch, params, soft_weights):
        own, target = student.logits, teacher.logits
        if own.shape[-1] == 1 and self.compare == KL:
            raise UserError("compare=kl needs several classes, and the head has one output; set compare=mse")
        if self.compare == KL:
            losses = kl_divergence(target, own, self.temperature)
        else:
            is_real = target > _LOWEST
            squares = jnp.where(is_real, own - jnp.where(is_real, target, own), 0.0) ** 2
            losses = jnp.sum(squares, axis=-1) / jnp.maximum(jnp.sum(is_real, axis=-1), 1)
        metrics = {}
        # With a single logit (a regression), argmax always agrees.
        if own.shape[-1] > 1:
            agrees = own.argmax(axis=-1) == target.argmax(axis=-1)
            metrics = {"agreement": (jnp.sum(soft_weights * agrees), jnp.sum(soft_weights))}
        return jnp.sum(jnp.where(soft_weights > 0, losses, 0.0) * soft_weights), metrics
