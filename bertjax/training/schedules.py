"""The learning rate as a function of the step: a schedule's shape, repeated for each stage that sets a peak."""

import abc
import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from bertjax.errors import UserError
from bertjax.registry import Union


@dataclasses.dataclass(frozen=True)
class Schedule(abc.ABC):
    """The shape of a learning rate that rises to its peak and falls. It is never 0 at a step of the run.

    Attributes:
      kind: name of the schedule in a configuration; each subclass sets its own as the default.
    """

    kind: str = dataclasses.field(init=False)

    @abc.abstractmethod
    def share(self, step: jax.Array, warmup_steps: int, steps: int) -> jax.Array:
        """Return the share of the peak at a step of `steps`; warmup_steps < steps."""

    def check(self, warmup_steps: int, steps: int, where: str) -> None:
        """Raise UserError unless the schedule fits into the steps of a segment.

        Args:
          warmup_steps: steps of the warm-up.
          steps: all steps of the segment.
          where: the name of the setting of the warm-up, for the message.
        """
        if warmup_steps >= steps:
            raise UserError(
                f"{where}={warmup_steps} must be below the {steps} steps that the learning rate has to rise and fall; "
                "lower it, or train longer"
            )


@dataclasses.dataclass(frozen=True)
class Linear(Schedule):
    """Linear rise over the warm-up, then linear fall to 0 after the last step (Devlin et al., 2019, appendix A.2)."""

    kind: str = dataclasses.field(init=False, default="linear")

    def share(self, step: jax.Array, warmup_steps: int, steps: int) -> jax.Array:
        rise = _rise(step, warmup_steps)
        fall = (steps - step) / max(steps - warmup_steps, 1)
        return jnp.minimum(1.0, jnp.minimum(rise, fall))


@dataclasses.dataclass(frozen=True)
class OneCycle(Schedule):
    """Linear rise from 1/100 of the peak, then linear fall to 1/100 of the start (Smith & Topin, 2018, arXiv
    1708.07120). The peak is at the end of the warm-up.
    """

    kind: str = dataclasses.field(init=False, default="one_cycle")

    def share(self, step: jax.Array, warmup_steps: int, steps: int) -> jax.Array:
        start, end = 1e-2, 1e-4
        rise = start + (1.0 - start) * step / max(warmup_steps, 1)
        fall = end + (1.0 - end) * (steps - 1 - step) / max(steps - 1 - warmup_steps, 1)
        return jnp.where(step < warmup_steps, rise, fall)


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
    """Linear rise over the warm-up, then half a cosine to 0 (Loshchilov & Hutter, 2017, arXiv 1608.03983)."""

    kind: str = dataclasses.field(init=False, default="cosine")

    def share(self, step: jax.Array, warmup_steps: int, steps: int) -> jax.Array:
        fallen = jnp.clip((step - warmup_steps) / (steps - warmup_steps), 0.0, 1.0)
        return jnp.minimum(_rise(step, warmup_steps), 0.5 * (1.0 + jnp.cos(jnp.pi * fallen)))


@dataclasses.dataclass(frozen=True)
class WarmupStableDecay(Schedule):
    """Linear rise over the warm-up, a constant peak, and a linear fall to 0 (Haegele et al., 2024, arXiv 2405.18392).

    Attributes:
      decay_steps: number of steps of the fall, at the end.
    """

    kind: str = dataclasses.field(init=False, default="wsd")
    decay_steps: int = 1000

    def __post_init__(self):
        if self.decay_steps < 1:
            raise UserError(f"optimizer.schedule.decay_steps={self.decay_steps} must be at least 1")

    def share(self, step: jax.Array, warmup_steps: int, steps: int) -> jax.Array:
        fall = (steps - step) / self.decay_steps
        return jnp.minimum(1.0, jnp.minimum(_rise(step, warmup_steps), fall))

    def check(self, warmup_steps: int, steps: int, where: str) -> None:
        super().check(warmup_steps, steps, where)
        if warmup_steps + self.decay_steps > steps:
            raise UserError(
                f"{where}={warmup_steps} and optimizer.schedule.decay_steps={self.decay_steps} are more than the "
                f"{steps} steps that the learning rate has to rise and fall; lower one of them, or train longer"
            )


@dataclasses.dataclass(frozen=True)
class InverseSqrt(Schedule):
    """Linear rise over the warm-up, then a fall with one over the root of the step (Vaswani et al., 2017, section 5.3,
    arXiv 1706.03762, "noam"). Without a warm-up it falls from the first step.
    """

    kind: str = dataclasses.field(init=False, default="inverse_sqrt")

    def share(self, step: jax.Array, warmup_steps: int, steps: int) -> jax.Array:
        fall = jnp.sqrt(max(warmup_steps, 1) / jnp.maximum(step + 1, 1))  # also defined before the segment
        return jnp.minimum(_rise(step, warmup_steps), fall)


def _rise(step: jax.Array, warmup_steps: int) -> jax.Array:
    return (step + 1) / max(warmup_steps, 1)


KINDS = {
    "linear": "bertjax.training.schedules:Linear",
    "one_cycle": "bertjax.training.schedules:OneCycle",
    "cosine": "bertjax.training.schedules:Cosine",
    "wsd": "bertjax.training.schedules:WarmupStableDecay",
    "inverse_sqrt": "bertjax.training.schedules:InverseSqrt",
}
SCHEDULES = Union("optimizer.schedule", Schedule, default="linear", kinds=KINDS, is_open=False)


@dataclasses.dataclass(frozen=True)
class WarmupSegment:
    """Consecutive steps over which the learning rate rises to a peak and falls.

    Attributes:
      first: the first step.
      steps: number of steps.
      peak: the highest rate.
      warmup_steps: number of steps before the peak.
    """

    first: int
    steps: int
    peak: float
    warmup_steps: int


def learning_rate(schedule: Schedule, segments: Sequence[WarmupSegment]) -> Callable[[jax.Array], jax.Array]:
    """Return a function from the step to the rate, over segments that follow one another from step 0 on."""

    def rate_in(segment: WarmupSegment, step: jax.Array) -> jax.Array:
        return segment.peak * schedule.share(step - segment.first, segment.warmup_steps, segment.steps)

    def at(step: jax.Array) -> jax.Array:
        rate = rate_in(segments[0], step)
        for segment in segments[1:]:
            rate = jnp.where(step < segment.first, rate, rate_in(segment, step))
        return rate

    return at
