"""Teacher settings and hooks that every objective inherits. Exported students do not need their teacher."""

import copy
import dataclasses
from typing import Any, ClassVar, Self

import jax
import numpy as np

from bertjax.data.batch import Draw, PlacedExamples
from bertjax.models.config import EncoderConfig
from bertjax.models.flops import FlopsPart
from bertjax.objectives import imitation, replacement
from bertjax.objectives.replacement import Replacing
from bertjax.objectives.teacher import Teacher
from bertjax.objectives.teacher_losses.base import TeacherLoss
from bertjax.runtime.errors import UserError

Arrays = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Student:
    """Teacher-related settings of every objective. `bertjax.objectives.imitation` implements them.

    Attributes:
      teacher: export folder of a model that provides targets.
      teacher_losses: {name: loss against the teacher}, see `bertjax.objectives.teacher_losses`.
      own_factor: weight of the objective's own terms next to `teacher_losses`; 0 learns only from the teacher.
      replacing: schedule for replacing teacher modules by student layers (`bertjax.objectives.replacement`), or None.
      bound_teacher: the teacher, after `bind_teacher`. Without it, `teacher_losses` have no effect.
      head_settings: settings that decide how heads read hidden states. A teacher keeps its own.
    """

    teacher: str = dataclasses.field(default="", kw_only=True)
    teacher_losses: dict[str, TeacherLoss] = dataclasses.field(default_factory=dict, kw_only=True, hash=False)
    own_factor: float = dataclasses.field(default=1.0, kw_only=True)
    replacing: Replacing | None = dataclasses.field(default=None, kw_only=True)
    bound_teacher: ClassVar[Teacher | None] = None
    head_settings: ClassVar[tuple[str, ...]] = ()

    def bind_teacher(self, teacher: Teacher) -> Self:
        """Host: attach the model in the folder `teacher`, which is opened once, before the first step."""
        return self.copy_with(bound_teacher=teacher)

    def copy_with(self, **values: Any) -> Self:
        """Return a copy with attributes that are not settings, as added by `bind` and `bind_teacher`."""
        # dataclasses.replace would drop attributes that are not fields, and frozen dataclasses need object.__setattr__.
        bound = copy.copy(self)
        for name, value in values.items():
            object.__setattr__(bound, name, value)
        return bound

    @property
    def imitates(self) -> bool:
        """Whether the loss includes `teacher_losses`."""
        return self.bound_teacher is not None and bool(self.teacher_losses)

    @property
    def reads_text(self) -> bool:
        """Whether the teacher runs. `teacher_losses` that compare only parameters do not need it."""
        return imitation.reads_text(self.teacher_losses)

    @property
    def replaces(self) -> bool:
        """Whether student layers replace teacher modules during training."""
        return self.bound_teacher is not None and self.replacing is not None

    @property
    def captures(self) -> bool:
        """Whether teacher losses read encoder layers."""
        return self.imitates and bool(imitation.captures_of(self.teacher_losses))

    def as_its_teacher(self) -> Self:
        """Return the objective that computes the teacher's logits, with the teacher's own `head_settings`."""
        # A head must read hidden states as it was trained to, with the same pooling, for example.
        settings = {name: self.bound_teacher.objective.get(name, getattr(self, name)) for name in self.head_settings}
        return dataclasses.replace(self, teacher="", teacher_losses={}, replacing=None, **settings)

    def all_features(self, examples: PlacedExamples, draw: Draw) -> dict[str, np.ndarray]:
        """Host: return `features`, plus the inputs of `replacing`."""
        own = self.features(examples, draw)
        return own if self.replacing is None else own | replacement.features(self.replacing, draw, examples.shape[0])

    def soft_logits(self, logits: Any, batch: Arrays) -> jax.Array:
        """Device: select, from the result of `logits`, the logits [..., C] to compare between student and teacher.

        Raises:
          UserError: the objective has no such logits.
        """
        raise UserError(
            f"{type(self).__name__} has no logits for a teacher loss of kind=logits; use kind=hidden, attention or "
            "relations"
        )

    def soft_weights(self, batch: Arrays) -> jax.Array:
        """Device: return the weight of each prediction in `soft_logits`, float32 [...]; labels are not needed."""
        raise UserError(f"{type(self).__name__} has no logits for a teacher loss of kind=logits; use kind=hidden")

    def projections(self, config: EncoderConfig, key: jax.Array) -> dict:
        """Return initial parameters of teacher losses; they are not exported."""
        if not self.imitates:
            return {}
        return imitation.init(self.teacher_losses, key, config, self.bound_teacher.config)

    def all_weights(self, batch: Arrays) -> Arrays:
        """Device: return `weights`, plus the normalizers of `teacher_losses`."""
        own = self.weights(batch)
        if not self.imitates:
            return own
        if taken := sorted(own.keys() & self.teacher_losses.keys()):
            raise UserError(f"objective.teacher_losses has the name {taken[0]!r} of a term; choose another name")
        # Normalizers depend only on the batch, so they are known before any model runs.
        soft_weights = self.soft_weights(batch) if imitation.needs_logits(self.teacher_losses) else None
        return own | {name: loss.weight(batch, soft_weights) for name, loss in self.teacher_losses.items()}

    def factor(self, term: str, step: jax.Array | int) -> float | jax.Array:
        """Device: return a term's loss weight at a step, including terms of `teacher_losses`."""
        if self.imitates and term in self.teacher_losses:
            return self.teacher_losses[term].factor
        coefficient = self.coefficients_at(step).get(term, 1.0)
        return self.own_factor * coefficient if self.imitates else coefficient

    def frozen_params(self, config: EncoderConfig) -> dict | None:
        """Return parameters that terms read but nothing trains; their fingerprint is part of the run's identity."""
        if self.replaces:
            return replacement.frozen_params(self, config)
        return imitation.frozen_params(self, config) if self.imitates else None

    def all_flops_parts(self, config: EncoderConfig) -> tuple[FlopsPart, ...]:
        """Return `flops_parts`, plus the teacher's if `teacher_losses` or `replacing` run it."""
        if self.replaces:
            return replacement.flops_parts(self, config)
        return imitation.flops_parts(self, config) if self.imitates else self.flops_parts(config)
