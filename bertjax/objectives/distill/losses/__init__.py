"""Losses that compare a student with its teacher, one idea per file: the entries of `objective.losses`.

The registry lists the built-in ones; name your own as `module:Class`.
"""

from bertjax.config.registry import Union
from bertjax.objectives.distill.losses.base import TeacherLoss

TEACHER_LOSSES = Union(
    "objective.losses.*",
    TeacherLoss,
    default="logits",
    # As strings, because a module is imported only when its class is used.
    kinds={
        "logits": "bertjax.objectives.distill.losses.logits:SoftLogits",
        "token_logits": "bertjax.objectives.distill.losses.token_logits:TokenLogits",
        "output": "bertjax.objectives.distill.losses.hidden:OutputCosine",
        "hidden": "bertjax.objectives.distill.losses.hidden:HiddenStates",
        "attention": "bertjax.objectives.distill.losses.attention:AttentionMaps",
        "relations": "bertjax.objectives.distill.losses.relations:Relations",
        "parameters": "bertjax.objectives.distill.losses.parameters:Parameters",
    },
)
