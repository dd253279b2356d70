"""Teachers of a run, opened once before its first step."""

import dataclasses

from bertjax.config import Config, Task
from bertjax.objectives.teacher import Teacher


def open_teachers(config: Config) -> Config:
    """Return the configuration with the teacher of every objective opened. Teachers that are open already are kept.

    Raises:
      UserError: a teacher's folder is not an export or is damaged.
    """
    tasks = {name: _with_teacher(task) for name, task in config.tasks.items()}
    if all(task is config.tasks[name] for name, task in tasks.items()):
        return config
    return dataclasses.replace(config, tasks=tasks)


def _with_teacher(task: Task) -> Task:
    objective = task.objective
    if not objective.teacher or objective.bound_teacher is not None:
        return task
    return dataclasses.replace(task, objective=objective.bind_teacher(Teacher.read(objective.teacher)))
