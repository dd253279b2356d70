"""Checks of tasks with a generator (`objective.kind=electra`) against the other tasks and the stages of a run."""

from collections.abc import Mapping, Sequence

from bertjax.config.task import Task
from bertjax.objectives.pretraining.electra import DISENTANGLED, Electra
from bertjax.runtime.errors import UserError


def check(tasks: Mapping[str, Task], depths: Sequence[int]) -> None:
    """Raise UserError if a generator cannot be trained with the other tasks, or cannot grow with the encoder.

    Args:
      tasks: {name: task} of a run.
      depths: the encoder's number of layers in each stage.
    """
    for name, task in tasks.items():
        if not isinstance(task.objective, Electra):
            continue
        others = [other for other in tasks if other != name]
        # All encoders of a run read stop_gradient(E) + delta. Only this task's generator trains E, and the steps of
        # other tasks hold delta, which is not a parameter of their models: they would train no word.
        if task.objective.embedding_sharing == DISENTANGLED and others:
            raise UserError(
                f"tasks.{name}.objective.embedding_sharing={DISENTANGLED} lets only this task train words, and "
                f"tasks.{others[0]} reads them too; set it to all, or leave tasks.{others[0]} out"
            )
        layers = [task.objective.generator_layers(depth) for depth in depths]
        for index, (before, after) in enumerate(zip(layers, layers[1:]), 1):
            # New layers are copies of all layers, so a generator that was rounded may have no number of copies.
            if after % before:
                raise UserError(
                    f"tasks.{name}.objective.generator_depth={task.objective.generator_depth:g} gives the generator "
                    f"{before} layers for stages.{index - 1}.layers={depths[index - 1]} and {after} for the "
                    f"{depths[index]} layers of stages.{index}, which are no copies of the {before}; set "
                    f"stages.{index - 1}.layers={depths[index]}, or tasks.{name}.objective.generator_depth=1"
                )
