"""Losses that compare a student with its teacher, one idea per file. Any objective adds them through `teacher_losses`.

The registry lists the built-in ones; name your own as `module:Class`.
"""

from bertjax.config.registry import Union
from bertjax.objectives.teacher_losses.base import TeacherLoss

TEACHER_LOSSES = Union(
    "objective.teacher_losses.*",
    TeacherLoss,
    default="logits",
    # As strings, because a module is imported only when its class is used.
    kinds={
        "logits": "bertjax.objectives.teacher_losses.logits:SoftLogits",
        "hidden": "bertjax.objectives.teacher_losses.hidden:HiddenStates",
        "attention": "bertjax.objectives.teacher_losses.attention:AttentionMaps",
        "relations": "bertjax.objectives.teacher_losses.relations:Relations",
        "parameters": "bertjax.objectives.teacher_losses.parameters:Parameters",
    },
)
