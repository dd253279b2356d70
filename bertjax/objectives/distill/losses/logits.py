"""Soft targets: learn from the teacher's logits (Hinton et al., 2015, section 2, arXiv 1503.02531).

Either of each prediction, or at every token, as in DistilBERT (Sanh et al., 2019, section 2, arXiv 1910.01108).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from bertjax.models.mixing import OUTPUT
from bertjax.objectives.distill.losses import TeacherLoss, is_token
from bertjax.objectives.losses import Sums, kl_divergence
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


# The head that both models need.
HEAD = "mlm"
# Number of tokens per chunk of logits: with a vocabulary of 30,000, 1,024 tokens take 126 MB per model.
_TOKENS_AT_ONCE = 1024


@dataclasses.dataclass(frozen=True)
class TokenLogits(TeacherLoss):
    """KL divergence between the masked-LM heads' distributions at all tokens, special symbols included.

    The kind `logits` compares the same distributions at predicted positions only. Metric: `agreement`, how often both
    models rank the same token first. Logits [B, T, V] for the whole batch never exist at once, yet none are computed
    twice, see `_in_parts`.

    Attributes:
      temperature: divides both models' logits.
    """

    kind: str = dataclasses.field(default="token_logits", init=False)
    temperature: float = setting(1.0, above=0)
    needs_token_logits: ClassVar[bool] = True
    captures: ClassVar[tuple[str, ...]] = (OUTPUT,)

    def terms(self, student, teacher, batch, params, soft_weights):
        is_token_BT = is_token(batch)
        rows, seq_len = is_token_BT.shape
        most = max(1, _TOKENS_AT_ONCE // seq_len)
        # The largest number of rows per chunk that divides the batch.
        at_once = max(size for size in range(1, min(rows, most) + 1) if rows % size == 0)

        def parts(array: jax.Array) -> jax.Array:
            return array.reshape(-1, at_once, *array.shape[1:])

        student_PBTD, teacher_PBTD = parts(student.captured[OUTPUT]), parts(teacher.captured[OUTPUT])
        # Make the parameters that `head` closes over explicit: custom_vjp cannot differentiate closed-over values.
        head, head_params = jax.closure_convert(student.token_logits, student_PBTD[0])

        def of_part(student_BTD, head_params, constants):
            teacher_BTD, is_token_BT = constants
            student_BTV, teacher_BTV = head(student_BTD, *head_params), teacher.token_logits(teacher_BTD)
            divergence_BT = kl_divergence(teacher_BTV, student_BTV, self.temperature)
            agrees_BT = student_BTV.argmax(axis=-1) == teacher_BTV.argmax(axis=-1)
            return jnp.sum(divergence_BT * is_token_BT), jnp.sum(agrees_BT * is_token_BT)

        divergence, agreed = _in_parts(of_part, student_PBTD, head_params, (teacher_PBTD, parts(is_token_BT)))
        return divergence, {"agreement": (agreed, jnp.sum(is_token_BT))}


def _in_parts(function: Callable[..., Sums], states: jax.Array, params: Any, constants: Any) -> Sums:
    """Sum a function's value and metric over parts of a batch, one part at a time.

    The gradient of a sum over parts is known up to one scalar factor, the incoming gradient. So the forward pass
    computes each part's gradient right after its value and saves that, instead of the (much larger) inputs of a
    backward pass.

    Args:
      function: maps a part of `states`, `params` and a part of `constants` to (value, metric).
      states: [P, ...], the parts.
      params: other values to differentiate.
      constants: arrays [P, ...].
    """

    @jax.custom_vjp
    def sums(states, params):
        return tuple(map(jnp.sum, jax.lax.map(lambda part: function(part[0], params, part[1]), (states, constants))))

    def forward(states, params):
        def add(total, part):
            # has_aux: the metric comes along without a gradient.
            values, (of_states, of_params) = jax.value_and_grad(function, argnums=(0, 1), has_aux=True)(
                part[0], params, part[1]
            )
            return jax.tree.map(jnp.add, total, (values, of_params)), of_states

        zeros = jnp.float32(0.0), jnp.float32(0.0)
        (total, of_params), of_states = jax.lax.scan(
            add, (zeros, jax.tree.map(jnp.zeros_like, params)), (states, constants)
        )
        return total, (of_states, of_params)

    # factors[1] belongs to the metric, which is not differentiated.
    def backward(gradients, factors):
        return jax.tree.map(lambda gradient: (factors[0] * gradient).astype(gradient.dtype), gradients)

    sums.defvjp(forward, backward)
    return sums(states, params)
