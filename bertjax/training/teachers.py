"""Open the teachers of a run before its first step."""

import dataclasses
from typing import cast

from bertjax.config.config import Config, Task
from bertjax.objectives.base import OBJECTIVES, Objective
from bertjax.objectives.distill.distilled import Distilled
from bertjax.objectives.distill.teacher import Teacher
from bertjax.objectives.wrapper import Taught
from bertjax.runtime.errors import UserError


def open_teachers(config: Config) -> Config:
    """Return the configuration with every objective's teacher opened. Teachers that are already open are kept.

    Raises:
      UserError: no teacher is named, its folder is not an export or is damaged, or unlabeled texts have no teacher.
    """
    tasks = {name: _with_teacher(task) for name, task in config.tasks.items()}
    if all(task is config.tasks[name] for name, task in tasks.items()):
        return config
    return dataclasses.replace(config, tasks=tasks)


def _with_teacher(task: Task) -> Task:
    objective = task.objective
    unlabeled = getattr(task.examples, "unlabeled", "")
    if unlabeled and not (isinstance(objective, Distilled) and any(loss.factor for loss in objective.losses.values())):
        raise UserError(
            f"examples.unlabeled={unlabeled} needs a teacher, which labels it; set objective.kind=distilled, "
            "objective.teacher and objective.losses"
        )
    if not isinstance(objective, Taught) or objective.bound_teacher is not None:
        return task
    if not objective.teacher:
        raise UserError(
            f"objective.kind={OBJECTIVES.kind_of(objective)} needs a teacher; set objective.teacher to an export folder"
        )
    # Reading the export now reveals a wrong folder before the corpus is prepared.
    bound = objective.bind_teacher(Teacher.read(objective.teacher))
    return dataclasses.replace(task, objective=cast(Objective, bound))
