"""A task: an objective with the examples that it is trained on."""

import dataclasses
import math

from bertjax.data.formats import kinds_with
from bertjax.data.formats.base import ExampleFormat
from bertjax.data.formats.segment_pairs import SegmentPairs
from bertjax.errors import UserError
from bertjax.objectives import kind_of
from bertjax.objectives.base import Objective
from bertjax.objectives.bert import BERT


@dataclasses.dataclass(frozen=True)
class Task:
    """An objective with the examples that it is trained on.

    Attributes:
      objective: by `kind`, see `bertjax.objectives`.
      examples: by `kind`, see `bertjax.data.formats`.
      row_examples: examples that may share a row; 1 for none, 0 for one per 16 tokens of the row.
      plans: how often the text is cut and paired anew; epoch e trains on plan e mod `plans`.
      weight: of its share of the steps, beside the other tasks of a stage.
      task_type: which of the model's task embeddings its steps add (`model.task_types`).
    """

    objective: Objective = BERT()
    examples: ExampleFormat = SegmentPairs()
    row_examples: int = 0
    plans: int = 1
    weight: float = 1.0
    task_type: int = 0

    def __post_init__(self):
        if missing := [label for label in self.objective.labels if label not in self.examples.labels]:
            kinds = kinds_with(self.objective.labels) or ["module:Class"]
            remedy = f"use examples.kind={' or '.join(kinds)}"
            if self.examples.kind in kinds:
                remedy = "name its column in examples.label"
            raise UserError(
                f"objective.kind={kind_of(self.objective)} learns the label {missing[0]}, which "
                f"examples.kind={self.examples.kind} does not give; {remedy}, or another objective"
            )
        if self.row_examples < 0:
            raise UserError(f"row_examples={self.row_examples} must not be negative; 1 gives each example its own row")
        if self.task_type < 0:
            raise UserError(f"task_type={self.task_type} must not be negative; task embeddings are counted from 0")
        if self.plans < 1:
            raise UserError(f"plans={self.plans} must be at least 1")
        if not 0.0 < self.weight < math.inf:
            raise UserError(
                f"weight={self.weight} must be a number above 0; to train without a task, leave it out of "
                "stages.N.tasks"
            )
