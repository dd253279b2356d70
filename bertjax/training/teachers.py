"""Open the teachers of a run before its first step, and remove them from a finished student."""

import dataclasses
import math

from bertjax.config.config import Config, Task
from bertjax.objectives import OBJECTIVES
from bertjax.objectives.base import Objective
from bertjax.objectives.teacher import Teacher
from bertjax.runtime.errors import UserError, shorten


def open_teachers(config: Config) -> Config:
    """Return the configuration with every objective's teacher opened. Teachers that are already open are kept.

    Raises:
      UserError: a teacher's folder is not an export or is damaged, or a teacher or its losses would have no effect.
    """
    tasks = {name: _with_teacher(task) for name, task in config.tasks.items()}
    if all(task is config.tasks[name] for name, task in tasks.items()):
        return config
    return dataclasses.replace(config, tasks=tasks)


def without_teachers(config: Config) -> Config:
    """Return a finished student's configuration, without its teacher and unlabeled texts."""
    return dataclasses.replace(config, tasks={name: _without_teacher(task) for name, task in config.tasks.items()})


def _without_teacher(task: Task) -> Task:
    if not task.objective.teacher_losses and task.objective.replacing is None:
        return task
    objective = dataclasses.replace(task.objective, teacher="", teacher_losses={}, replacing=None, own_factor=1.0)
    examples = task.examples
    if getattr(examples, "unlabeled", ""):
        examples = dataclasses.replace(examples, unlabeled="")
    return dataclasses.replace(task, objective=objective, examples=examples)


def _with_teacher(task: Task) -> Task:
    objective = task.objective
    if objective.bound_teacher is not None:
        return task
    _check(objective)
    unlabeled = getattr(task.examples, "unlabeled", "")
    if unlabeled and not any(loss.factor for loss in objective.teacher_losses.values()):
        raise UserError(
            f"examples.unlabeled={unlabeled} needs a teacher, which labels it; set objective.teacher and "
            "objective.teacher_losses"
        )
    if not objective.teacher:
        return task
    # Reading the export now reveals a wrong folder before the corpus is prepared.
    return dataclasses.replace(task, objective=objective.bind_teacher(Teacher.read(objective.teacher)))


def _check(objective: Objective) -> None:
    """Raise UserError if the teacher or its losses would have no effect."""
    kind, losses = OBJECTIVES.kind_of(objective), objective.teacher_losses
    named = f"objective.teacher_losses={shorten(list(losses))}"
    # `Objective.terms` adds the teacher's losses. An objective that overrides it must use the teacher by itself.
    has_own_terms = type(objective).terms is not Objective.terms
    # NaN fails this comparison too; `own_factor < 0.0` would accept it.
    if not 0.0 <= objective.own_factor < math.inf:
        raise UserError(f"objective.own_factor={objective.own_factor} must be a number, not negative")
    if losses and objective.own_factor == 0.0 and not any(loss.factor for loss in losses.values()):
        raise UserError(
            f"objective.own_factor=0 leaves nothing to learn: every loss of {named} has factor=0; raise one of them"
        )
    if losses and has_own_terms:
        raise UserError(
            f"{named} have no effect with objective.kind={kind}, which computes its own losses; remove them"
        )
    if losses and not objective.teacher:
        raise UserError(f"{named} need a teacher; set objective.teacher to an export folder")
    if objective.replacing is not None:
        for problem, remedy in (
            (has_own_terms, f"has no effect with objective.kind={kind}, which computes its own losses; remove it"),
            (losses, f"and {named} do not go together; remove one of them"),
            (
                objective.own_factor != 1.0,
                f"and objective.own_factor={objective.own_factor} do not go together: the objective's own loss is the "
                "only one; set objective.own_factor=1",
            ),
            (not objective.teacher, "needs a teacher; set objective.teacher to an export folder"),
        ):
            if problem:
                raise UserError(f"objective.replacing {remedy}")
        return
    # Terms of an objective's own can read a teacher's parameters only from its own `frozen_params`.
    if objective.teacher and has_own_terms and type(objective).frozen_params is Objective.frozen_params:
        raise UserError(
            f"objective.teacher={objective.teacher} has no effect with objective.kind={kind}, which computes its own "
            "losses; remove it, or set objective.kind=distillation"
        )
    if objective.teacher and not losses and not has_own_terms:
        raise UserError(
            f"objective.teacher={objective.teacher} has no effect without losses; set "
            "objective.teacher_losses={'soft': {'kind': 'logits'}}, for example"
        )
    if objective.own_factor != 1.0 and not losses:
        raise UserError(
            f"objective.own_factor={objective.own_factor} has no effect without objective.teacher_losses; leave it out"
        )
