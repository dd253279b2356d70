"""What wrappers with a teacher have in common; a class beside `Wrapper`, not one more between it and them."""

from typing import Any, ClassVar, Self, cast

from bertjax.objectives.distill.teacher import Teacher


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
