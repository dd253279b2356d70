"""Schedules beside the linear one: cosine, constant with a decay at the end, inverse square root."""

import dataclasses

import jax
import jax.numpy as jnp

from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import setting
from bertjax.training.schedules import Schedule, rise


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
    """Linear warm-up, then half a cosine to 0 (Loshchilov & Hutter, 2017, arXiv 1608.03983), or to a floor.

    Attributes:
      floor: share of the peak at the end of the decay.
      end_step: first step at the floor, where the rate stays from then on; 0 for the end. Both count from the start of
        the segment: a stage with its own `learning_rate` starts another one, which ends the one before.
    """

    kind: str = dataclasses.field(init=False, default="cosine")
    floor: float = setting(0.0, least=0, below=1)
    end_step: int = setting(0, least=0, needs="floor")

    def share(self, step: jax.Array, warmup_steps: int, steps: int) -> jax.Array:
        # Beyond 1 the cosine would rise again.
        fallen = jnp.clip((step - warmup_steps) / ((self.end_step or steps) - warmup_steps), 0.0, 1.0)
        fall = self.floor + (1.0 - self.floor) * 0.5 * (1.0 + jnp.cos(jnp.pi * fallen))
        return jnp.minimum(rise(step, warmup_steps), fall)

    def check(self, warmup_steps: int, steps: int, setting: str) -> None:
        super().check(warmup_steps, steps, setting)
        if self.end_step and not warmup_steps < self.end_step <= steps:
            raise UserError(
                f"optimizer.schedule.end_step={self.end_step} must be above {setting}, and at most the {steps} steps "
                "that the learning rate has to rise and fall; set it to 0 for the last of them"
            )


ONE_MINUS_SQRT = "1-sqrt"


@dataclasses.dataclass(frozen=True)
class WarmupStableDecay(Schedule):
    """Linear warm-up, constant peak, decay at the end (Haegele et al., 2024, arXiv 2405.18392, section 3).

    It decays once, at the end of the run. A stage with a new peak before that is another constant, as in ModernBERT:
    8e-4, then 3e-4 on long rows, then the decay (Warner et al., 2024, arXiv 2412.13663, section 2.2).

    Attributes:
      decay_steps: length of the final decay; 0 for none, as in a run from which others branch to decay.
      decay: its shape, `linear`, or `1-sqrt`, which falls faster at first: 1 - sqrt(share of the decay that is done).
        Haegele et al. found it better than linear (section 3.2); ModernBERT ends with it.
      floor: share of the peak at the end of the decay.
    """

    kind: str = dataclasses.field(init=False, default="wsd")
    decay_steps: int = setting(1000, least=0)
    decay: str = setting("linear", choices=("linear", ONE_MINUS_SQRT))
    floor: float = setting(0.0, least=0, below=1)

    @property
    def before_another(self) -> Schedule:
        return dataclasses.replace(self, decay_steps=0)

    def share(self, step: jax.Array, warmup_steps: int, steps: int) -> jax.Array:
        if not self.decay_steps:
            return jnp.minimum(1.0, rise(step, warmup_steps))
        left = jnp.clip((steps - step) / self.decay_steps, 0.0, 1.0)
        fall = 1.0 - jnp.sqrt(1.0 - left) if self.decay == ONE_MINUS_SQRT else left
        return jnp.minimum(rise(step, warmup_steps), self.floor + (1.0 - self.floor) * fall)

    def check(self, warmup_steps: int, steps: int, setting: str) -> None:
        super().check(warmup_steps, steps, setting)
        if warmup_steps + self.decay_steps > steps:
            raise UserError(
                f"{setting} and optimizer.schedule.decay_steps={self.decay_steps} are more than the "
                f"{steps} steps that the learning rate has to rise and fall; lower one of them, or train longer"
            )


@dataclasses.dataclass(frozen=True)
class InverseSqrt(Schedule):
    """Linear warm-up, then decay with the inverse square root of the step (Vaswani et al., 2017, section 5.3, arXiv
    1706.03762, "noam"). Without a warm-up it decays from the first step on.
    """

    kind: str = dataclasses.field(init=False, default="inverse_sqrt")

    def share(self, step: jax.Array, warmup_steps: int, steps: int) -> jax.Array:
        fall = jnp.sqrt(max(warmup_steps, 1) / jnp.maximum(step + 1, 1))  # no NaN at steps before the segment
        return jnp.minimum(rise(step, warmup_steps), fall)
