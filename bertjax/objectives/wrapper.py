"""Wrappers: objectives that train another objective in their own way, most of them with a teacher.

An exported model has the wrapped objective alone, so predictions need neither the wrapper nor the teacher.
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from bertjax.objectives.base import OBJECTIVES, Objective
from bertjax.objectives.distill.teacher import Teacher
from bertjax.objectives.host import Host
from bertjax.objectives.slots import Slots
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import PLACE, setting


@dataclasses.dataclass(frozen=True)
class Wrapper(Objective):
    """Trains another objective. By default, everything is that objective's.

    Subclasses override what they change. Settings are not delegated: read them from `unwrapped`.

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

    def bind(self, store):
        return self.copy_with(objective=self.objective.bind(store))


def _delegated(name: str) -> Callable[..., Any]:
    return lambda wrapper, *arguments, **options: getattr(wrapper.objective, name)(*arguments, **options)


# Every member that an objective may define. Attributes become properties.
for _name, _member in (vars(Host) | vars(Objective)).items():
    if not _name.startswith("_") and not hasattr(_member, "__final__") and _name not in vars(Wrapper):
        _attribute = property(operator.attrgetter(f"objective.{_name}"))
        setattr(Wrapper, _name, _delegated(_name) if callable(_member) else _attribute)


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


@dataclasses.dataclass(frozen=True)
class Taught(Wrapper):
    """A wrapper with a teacher.

    Attributes:
      teacher: export folder of a trained model.
      bound_teacher: the teacher, after `bind_teacher`.
      reads_text: whether the teacher runs, so that both models need the same tokenizer.
    """

    teacher: str = setting("", metadata=PLACE)
    bound_teacher: ClassVar[Teacher | None] = None
    reads_text: ClassVar[bool] = True

    def bind_teacher(self, teacher: Teacher) -> Self:
        """Host: attach the model in the folder `teacher`, which is opened once, before the first step."""
        return self.copy_with(bound_teacher=teacher)
