"""A task: an objective with its training examples; checks of tasks with each other, with stages and with the model."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

from bertjax.data.formats import ExampleFormat, kinds_with
from bertjax.data.formats.pairs import SegmentPairs
from bertjax.data.labeled.base import LabeledFormat
from bertjax.data.masking import Masking
from bertjax.data.order import SMALLEST_SHARE
from bertjax.models.config import EncoderConfig
from bertjax.models.dropout import drops
from bertjax.objectives.base import OBJECTIVES, Objective
from bertjax.objectives.finetuning.base import MIX
from bertjax.objectives.pretraining.sentence_pairs import BERT
from bertjax.objectives.wrapper import rewrapped, unwrapped
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import check, setting
from bertjax.training.config import Stage

# All plans are computed and stored before the first step, so their number is limited.
MOST_PLANS = 1000


@dataclasses.dataclass(frozen=True)
class Task:
    """An objective with its training examples.

    Attributes:
      objective: prediction target, selected by `kind` (`bertjax.objectives`).
      examples: format that turns text into examples, selected by `kind` (`bertjax.data.formats`).
      row_examples: maximum number of examples per row; 0 allows one per 16 tokens.
      plans: number of different plans for cutting and pairing the text; epoch e uses plan e mod `plans`.
      weight: share of steps relative to the stage's other tasks; None to use the number of rows.
      task_type: index of the task embedding to add in this task's steps (`model.embeddings.task_types`).
    """

    objective: Objective = BERT()
    examples: ExampleFormat = SegmentPairs()
    row_examples: int = setting(0, least=0)
    plans: int = setting(1, least=1, most=MOST_PLANS)
    weight: float | None = setting(1.0, above=0, hint="stages.N.tasks trains without a task")
    task_type: int = setting(0, least=0)

    def __post_init__(self):
        labels = self.objective.traits.labels
        if missing := [label for label in labels if label not in self.examples.labels]:
            # If no registered format has the label, only a user's own class can.
            kinds = kinds_with(labels) or ["module:Class"]
            remedy = f"use examples.kind={' or '.join(kinds)}"
            if self.examples.kind in kinds:
                remedy = "name its column in examples.label"
            raise UserError(
                f"objective.kind={self.kind} learns the label {missing[0]}, which "
                f"examples.kind={self.examples.kind} does not have; {remedy}, or another objective"
            )
        check(self)

    def in_stage(self, stage: Stage) -> Self:
        """Return a copy with the masking that a stage trains with; a task without masking does not change.

        Raises:
          UserError: the rate is not between 0 and 1, or the objective does not work with this masking.
        """
        if self.masking is None or not (stage.masking or stage.masking_rate):
            return self
        masking = stage.masking or dataclasses.replace(self.masking, rate=stage.masking_rate)
        changed = rewrapped(
            self.objective, lambda objective: dataclasses.replace(cast(Any, objective), masking=masking)
        )
        return dataclasses.replace(self, objective=changed)

    @property
    def masking(self) -> Masking | None:
        """The objective's choice of tokens to predict; None if it has none."""
        masking = getattr(unwrapped(self.objective), "masking", None)
        return masking if isinstance(masking, Masking) else None

    @property
    def kind(self) -> str:
        """What is predicted: the objective's kind, without a wrapper."""
        return OBJECTIVES.kind_of(unwrapped(self.objective))

    @property
    def has_classes(self) -> bool:
        """Whether the objective predicts classes and takes their names from the training file."""
        # A registered or user objective opts in with a field of this name.
        is_set_by_data = "classes" in {field.name for field in dataclasses.fields(unwrapped(self.objective))}
        return is_set_by_data and isinstance(self.examples, LabeledFormat)


def task_at(tasks: Mapping[str, Task], stages: Sequence[Stage], stage: int, name: str) -> Task:
    """Return a task with the masking that a stage sets; see `Task.in_stage` for the errors."""
    try:
        return tasks[name].in_stage(stages[stage])
    except UserError as error:
        raise UserError(f"stages.{stage}, tasks.{name}: {error}") from error


def check_tasks(tasks: Mapping[str, Task], stages: Sequence[Stage], model: EncoderConfig, micro_tokens: int) -> None:
    """Raise UserError if tasks cannot be trained together, in these stages, or with this model.

    Args:
      tasks: {name: task}.
      stages: stages of the run, at least one.
      model: architecture at the end of the run.
      micro_tokens: `runtime.micro_tokens`.
    """
    if not tasks:
        raise UserError("tasks is empty; give at least one, with an objective and examples")
    labeled = [name for name, task in tasks.items() if isinstance(task.examples, LabeledFormat)]
    if labeled and len(labeled) < len(tasks):
        raise UserError(
            f"tasks has {len(tasks)} entries ({', '.join(tasks)}), and {labeled[0]} has labeled files; "
            f"a mixture is trained on one corpus or on labeled files: fine-tune {labeled[0]} in its own run"
        )
    for name, task in tasks.items():
        # Names become parts of metric names, parameter paths and file names.
        if not re.fullmatch(r"[\w.-]+", name):
            raise UserError(f"tasks has the name {name!r}; use only letters, digits, -, _ and dots")
        if task.objective.traits.needs_global_batch and micro_tokens:
            kind = OBJECTIVES.kind_of(task.objective)
            raise UserError(
                f"runtime.micro_tokens={micro_tokens} would split the batch, and "
                f"objective.kind={kind} compares all its examples with each other; set runtime.micro_tokens=0, and "
                "runtime.remat=full or a smaller batch if memory is short"
            )
        others = [other for other in tasks if other != name]
        if (setting := task.objective.traits.trains_words_alone) and others:
            raise UserError(
                f"tasks.{name}.objective.{setting} lets only this task train words, and tasks.{others[0]} reads "
                f"them too; change it, or leave tasks.{others[0]} out"
            )
        starts_with_fewer = stages[0].layers not in (0, model.layers)
        if getattr(unwrapped(task.objective), "reads", "") == MIX and starts_with_fewer:
            raise UserError(
                f"tasks.{name}.objective reads a mix of all layers, which has a weight for each, and "
                f"stages.0.layers={stages[0].layers} starts with fewer than model.layers={model.layers}; "
                f"set tasks.{name}.objective.reads=last, or leave stages.N.layers out"
            )
        rates = model.dropout, model.attention_dropout
        if task.objective.traits.needs_dropout and not any(map(drops, rates)):
            raise UserError(
                f"model.dropout={rates[0]} and model.attention_dropout={rates[1]} drop nothing and make both views "
                f"of a text equal, which objective.kind={task.kind} compares; set model.dropout=0.1"
            )
    for name, task in tasks.items():
        if task.task_type >= max(1, task_types := model.embeddings.task_types):
            raise UserError(
                f"tasks.{name}.task_type={task.task_type} exceeds model.embeddings.task_types={task_types}; raise "
                f"model.embeddings.task_types to {task.task_type + 1} or more"
            )
        if task.task_type and name in labeled:
            raise UserError(
                f"tasks.{name}.task_type={task.task_type} applies to pretraining only; fine-tuned models use task "
                f"embedding 0: set tasks.{name}.task_type=0"
            )
    named = {name for stage in stages for name in stage.tasks}
    if unknown := sorted(named - tasks.keys()):
        raise UserError(f"stages.N.tasks has {unknown[0]!r}, which is not in tasks; choose among {', '.join(tasks)}")
    if all(stage.tasks for stage in stages) and (idle := [name for name in tasks if name not in named]):
        raise UserError(f"tasks.{idle[0]} is in no stage; add it to stages.N.tasks, or remove it from tasks")

    for index, stage in enumerate(stages):
        among = [task_at(tasks, stages, index, name) for name in stage.among(tasks)]  # checks the range of the rate
        # One task with masking is enough: GPT-BERT lowers the rate of masked steps, and has causal steps beside.
        if (stage.masking or stage.masking_rate) and all(task.masking is None for task in among):
            kinds = ", ".join(dict.fromkeys(task.kind for task in among))
            override = f"masking.kind={stage.masking.kind}" if stage.masking else f"masking_rate={stage.masking_rate}"
            raise UserError(
                f"stages.{index}.{override} has no effect on objective.kind={kinds}, which has no masking; set "
                f"stages.{index}.{'masking=None' if stage.masking else 'masking_rate=0'}"
            )
        weights = {name: tasks[name].weight for name in stage.among(tasks)}
        # A weight that depends on the data is checked when `resolve` builds the configuration again.
        if None in weights.values():
            continue
        # Turns repeat a table of fixed size (`bertjax.data.order.Turns`), in which a rarer task would have none.
        known = cast(dict[str, float], weights)
        rarest = min(known, key=known.__getitem__)
        if (share := known[rarest] / sum(known.values())) < SMALLEST_SHARE:
            raise UserError(
                f"tasks.{rarest}.weight={weights[rarest]} gives it {share:.3%} of the steps of stages.{index}; the "
                f"smallest share is {SMALLEST_SHARE:.3%}: raise its weight"
            )
