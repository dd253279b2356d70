"""Wrappers: objectives that train another objective in their own way, most of them with a teacher.

An exported model has the wrapped objective alone, so predictions need neither the wrapper nor the teacher.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, cast

from bertjax.objectives import OBJECTIVES
from bertjax.objectives.base import Objective
from bertjax.objectives.distill.teacher import Teacher
from bertjax.objectives.optional import flops_parts
from bertjax.objectives.slots import Slots
from bertjax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class Wrapper(Objective):
    """Trains another objective. By default, everything is that objective's.

    Subclasses override what they change. Optional methods (`bertjax.objectives.optional`) and settings are not
    delegated: read them from `unwrapped`.

    Attributes:
      objective: the prediction task; an export has this objective alone.
    """

    objective: Objective

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.objective, Wrapper):
            kind = OBJECTIVES.kind_of(self.objective)
            raise UserError(f"objective.objective.kind={kind} is a second wrapper; wrap an objective once")
        # A wrapper computes `terms` from the model's values, and cannot change terms that are computed in another way.
        if type(self.objective).terms is not Objective.terms or isinstance(self.objective, Slots):
            raise UserError(
                f"objective.objective.kind={OBJECTIVES.kind_of(self.objective)} computes its own losses, on which a "
                f"wrapper has no effect; use it without objective.kind={OBJECTIVES.kind_of(self)}"
            )

    @property
    def traits(self):
        return self.objective.traits

    @property
    def best_metric(self):
        return self.objective.best_metric

    @property
    def classes(self):
        return self.objective.classes

    def heads(self, config):
        return self.objective.heads(config)

    def model(self, config):
        return self.objective.model(config)

    def init(self, model, key, batch):
        return self.objective.init(model, key, batch)

    def frozen_params(self, config):
        return self.objective.frozen_params(config)

    def features(self, examples, draw):
        return self.objective.features(examples, draw)

    def logits(self, model, batch, key=None):
        return self.objective.logits(model, batch, key)

    def weights(self, batch):
        return self.objective.weights(batch)

    def terms_of(self, logits, batch):
        return self.objective.terms_of(logits, batch)

    def terms(self, model, params, frozen, batch, key, train, taps=None):
        return self.objective.terms(model, params, frozen, batch, key, train, taps)

    def loss_weights(self, terms, step):
        return self.objective.loss_weights(terms, step)

    def flops_parts(self, config):
        return flops_parts(self.objective, config)

    def outputs(self, model, params, batch, taps=None):
        return self.objective.outputs(model, params, batch, taps)

    def score(self, outputs, examples, records):
        return self.objective.score(outputs, examples, records)

    def predictions(self, outputs, examples, records):
        return self.objective.predictions(outputs, examples, records)


def unwrapped(objective: Objective) -> Objective:
    """Return the objective in a wrapper, which has the task's settings; any other objective is returned as it is."""
    return objective.objective if isinstance(objective, Wrapper) else objective


def rewrapped(objective: Objective, change: Callable[[Objective], Objective]) -> Objective:
    """Return `change(objective)`; in a wrapper, the wrapped objective is changed and the rest is kept."""
    if isinstance(objective, Wrapper):
        return objective.copy_with(objective=change(objective.objective))
    return change(objective)


def tuned(objective: Objective, metrics: Mapping[str, float]) -> Objective:
    """Return the objective with tuned settings from these metrics, such as a threshold, in place of its unset ones."""
    own, names = unwrapped(objective), objective.traits.tuned_settings
    values = {name: metrics[name] for name in names if getattr(own, name) is None and name in metrics}
    return rewrapped(objective, lambda own: own.copy_with(**values)) if values else objective


class Taught:
    """What wrappers with a teacher add; each has a field `teacher`, the export folder of a trained model.

    Attributes:
      bound_teacher: the teacher, after `bind_teacher`.
    """

    teacher: str
    bound_teacher: ClassVar[Teacher | None] = None

    def bind_teacher(self, teacher: Teacher) -> Self:
        """Host: attach the model in the folder `teacher`, which is opened once, before the first step."""
        return cast(Any, self).copy_with(bound_teacher=teacher)

    @property
    def reads_text(self) -> bool:
        """Whether the teacher runs, so that both models need the same tokenizer."""
        return True
