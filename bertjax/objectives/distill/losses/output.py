"""Encoder outputs: one minus the cosine, DistilBERT's third loss (Sanh et al., 2019, section 2, arXiv 1910.01108)."""

import dataclasses

from bertjax.models.mixing import OUTPUT
from bertjax.objectives.distill.losses.base import TeacherLoss
from bertjax.objectives.losses import cosine_distance
from bertjax.runtime.errors import UserError


@dataclasses.dataclass(frozen=True)
class OutputCosine(TeacherLoss):
    """One minus the cosine between the last hidden states of student and teacher, over all tokens.

    The states are those that heads read, after the final norm if there is one. The kind `hidden` compares the states
    between layers.
    """

    kind: str = dataclasses.field(default="output", init=False)

    @property
    def captures(self):
        return (OUTPUT,)

    def check(self, student, teacher):
        if student.width != teacher.width:
            raise UserError(
                f"the teacher has width={teacher.width} and the student {student.width}, so that the teacher loss "
                f"'output' cannot compare their states; set model.width={teacher.width}"
            )

    def terms(self, student, teacher, batch, params, soft_weights):
        return cosine_distance(student.captured[OUTPUT], teacher.captured[OUTPUT], batch["examples_BT"] > 0), {}
