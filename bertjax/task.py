"""A task of a run: an objective with the examples that it is trained on."""

import dataclasses
import math
from typing import Self

from bertjax.data.formats import kinds_with
from bertjax.data.formats.base import ExampleFormat
from bertjax.data.formats.segment_pairs import SegmentPairs
from bertjax.data.labeled.base import LabeledFormat
from bertjax.data.masking import Masking
from bertjax.errors import UserError
from bertjax.objectives import OBJECTIVES
from bertjax.objectives.base import Objective
from bertjax.objectives.pretraining.sentence_pairs import BERT

# Plans are made before the first step and stored.
MOST_PLANS = 1000


@dataclasses.dataclass(frozen=True)
class Task:
    """An objective with the examples that it is trained on.

    Attributes:
      objective: what is predicted, chosen by `kind` (`bertjax.objectives`).
      examples: how text becomes examples, chosen by `kind` (`bertjax.data.formats`).
      row_examples: largest number of examples in a row; 0 allows one per 16 tokens.
      plans: number of different ways in which the text is cut and paired; epoch e trains on plan e mod `plans`.
      weight: share of the steps, relative to the other tasks of a stage; None for the number of rows of its data.
      task_type: index of the task embedding that is added in its steps (`model.task_types`).
    """

    objective: Objective = BERT()
    examples: ExampleFormat = SegmentPairs()
    row_examples: int = 0
    plans: int = 1
    weight: float | None = 1.0
    task_type: int = 0

    def __post_init__(self):
        if missing := [label for label in self.objective.labels if label not in self.examples.labels]:
            kinds = kinds_with(self.objective.labels) or ["module:Class"]
            remedy = f"use examples.kind={' or '.join(kinds)}"
            if self.examples.kind in kinds:
                remedy = "name its column in examples.label"
            raise UserError(
                f"objective.kind={OBJECTIVES.kind_of(self.objective)} learns the label {missing[0]}, which "
                f"examples.kind={self.examples.kind} does not have; {remedy}, or another objective"
            )
        if self.row_examples < 0:
            raise UserError(f"row_examples={self.row_examples} must not be negative; 1 gives each example its own row")
        if self.task_type < 0:
            raise UserError(f"task_type={self.task_type} must not be negative; task embeddings are counted from 0")
        if not 1 <= self.plans <= MOST_PLANS:
            raise UserError(f"plans={self.plans} must be between 1 and {MOST_PLANS}")
        if self.weight is not None and not 0.0 < self.weight < math.inf:
            raise UserError(
                f"weight={self.weight} must be a number above 0; to train without a task, remove it from stages.N.tasks"
            )

    def with_masking_rate(self, rate: float) -> Self:
        """Return the task with another `objective.masking.rate`, or the same one if the rate is 0.

        Raises:
          UserError: its objective has no masking, or the rate is not between 0 and 1.
        """
        if not rate:
            return self
        masking = getattr(self.objective, "masking", None)
        if not isinstance(masking, Masking):
            raise UserError(
                f"masking_rate={rate} has no effect on objective.kind={OBJECTIVES.kind_of(self.objective)}, which has "
                "no masking; leave it out"
            )
        masking = dataclasses.replace(masking, rate=rate)
        return dataclasses.replace(self, objective=self.objective.copy_with(masking=masking))

    @property
    def has_classes(self) -> bool:
        """True if the objective predicts classes whose names are in the training file."""
        is_set_by_data = "classes" in {field.name for field in dataclasses.fields(self.objective)}
        return is_set_by_data and isinstance(self.examples, LabeledFormat)
