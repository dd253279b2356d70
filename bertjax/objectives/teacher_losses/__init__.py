"""Losses that compare a student with its teacher, one idea per file; any objective adds them by `teacher_losses`.

The registry lists them; a loss outside of bertjax is named by `module:Class`.
"""

from bertjax.objectives.teacher_losses.base import TeacherLoss
from bertjax.registry import Union

TEACHER_LOSSES = Union(
    "objective.teacher_losses.*",
    TeacherLoss,
    default="logits",
    kinds={
        "logits": "bertjax.objectives.teacher_losses.logits:SoftLogits",
        "hidden": "bertjax.objectives.teacher_losses.hidden:HiddenStates",
        "attention": "bertjax.objectives.teacher_losses.attention:AttentionMaps",
        "relations": "bertjax.objectives.teacher_losses.relations:Relations",
        "parameters": "bertjax.objectives.teacher_losses.parameters:Parameters",
    },
)
