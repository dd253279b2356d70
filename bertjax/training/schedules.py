"""Learning rate schedules: a shape, repeated for each stage that sets a new peak."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bertjax.config.registry import Kind, Union
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import check


@dataclasses.dataclass(frozen=True)
class Schedule(Kind, abc.ABC):
    """Base class: a learning rate that rises to a peak and falls. It is above 0 at every step of the run."""

    def __post_init__(self):
        check(self, "optimizer.schedule")

    @abc.abstractmethod
    def share(self, step: jax.Array, warmup_steps: int, steps: int) -> jax.Array:
        """Return the rate at a step, counted from 0, as a share of the peak; warmup_steps < steps."""

    @property
    def before_another(self) -> "Schedule":
        """The shape of a segment that another one follows, because a later stage sets a new peak; here the same."""
        return self

    def check(self, warmup_steps: int, steps: int, setting: str) -> None:
        """Raise UserError unless the schedule fits into a segment.

        Args:
          warmup_steps: warm-up steps.
          steps: all steps in the segment, warm-up included.
          setting: the warm-up setting with its value, for the message.
        """
        if warmup_steps >= steps:
            raise UserError(
                f"{setting} must be below the {steps} steps that the learning rate has to rise and fall; "
                "lower it, or train longer"
            )


@dataclasses.dataclass(frozen=True)
class Linear(Schedule):
    """Linear warm-up, then linear decay to 0 after the last step (Devlin et al., 2019, appendix A.2)."""

    kind: str = dataclasses.field(init=False, default="linear")

    def share(self, step: jax.Array, warmup_steps: int, steps: int) -> jax.Array:
        fall = (steps - step) / max(steps - warmup_steps, 1)
        return jnp.minimum(1.0, jnp.minimum(rise(step, warmup_steps), fall))


def rise(step: jax.Array, warmup_steps: int) -> jax.Array:
    """Return the rate at a step of a linear warm-up as a share of the peak; beyond the warm-up it is above 1."""
    return (step + 1) / max(warmup_steps, 1)  # + 1: a rate of 0 would waste the first step


KINDS = {
    "linear": "bertjax.training.schedules:Linear",
    "cosine": "bertjax.training.schedule_kinds:Cosine",
    "wsd": "bertjax.training.schedule_kinds:WarmupStableDecay",
    "inverse_sqrt": "bertjax.training.schedule_kinds:InverseSqrt",
}
SCHEDULES = Union("optimizer.schedule", Schedule, default="linear", kinds=KINDS)


class WarmupSegment(NamedTuple):
    """Consecutive steps with one peak of the learning rate.

    Attributes:
      first: the first step.
      steps: number of steps.
      peak: the highest rate.
      warmup_steps: steps before the peak.
    """

    first: int
    steps: int
    peak: float
    warmup_steps: int


def learning_rate(schedule: Schedule, segments: Sequence[WarmupSegment]) -> Callable[[jax.Array], jax.Array]:
    """Return a function from the step to the rate, over consecutive segments from step 0 on."""

    shapes = [*(schedule.before_another for _ in segments[1:]), schedule]

    def rate_in(index: int, step: jax.Array) -> jax.Array:
        segment = segments[index]
        return segment.peak * shapes[index].share(step - segment.first, segment.warmup_steps, segment.steps)

    def at(step: jax.Array) -> jax.Array:
        rate = rate_in(0, step)
        for index in range(1, len(segments)):  # the step is traced: all are computed, and `where` picks one
            rate = jnp.where(step < segments[index].first, rate, rate_in(index, step))
        return rate

    return at
