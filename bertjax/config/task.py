"""A task: an objective with its training examples."""

import dataclasses
from typing import Any, Self, cast

from bertjax.data.formats import ExampleFormat, kinds_with
from bertjax.data.formats.pairs import SegmentPairs
from bertjax.data.labeled.base import LabeledFormat
from bertjax.data.masking import Masking
from bertjax.objectives.base import OBJECTIVES, Objective
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
