"""Wrappers with a teacher."""

import dataclasses
from typing import ClassVar, Self

from bertjax.objectives.distill.teacher import Teacher
from bertjax.objectives.wrapper import Wrapper


@dataclasses.dataclass(frozen=True)
class Taught(Wrapper):
    """Trains another objective with a teacher. By default, everything is that objective's.

    Attributes:
      teacher: export folder of a trained model.
      bound_teacher: the teacher, after `bind_teacher`.
    """

    teacher: str = ""
    bound_teacher: ClassVar[Teacher | None] = None

    def bind_teacher(self, teacher: Teacher) -> Self:
        """Host: attach the model in the folder `teacher`, which is opened once, before the first step."""
        return self.copy_with(bound_teacher=teacher)

    @property
    def reads_text(self) -> bool:
        """Whether the teacher runs, so that both models need the same tokenizer."""
        return True
