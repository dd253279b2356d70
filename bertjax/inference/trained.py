"""What a fine-tuned model was trained to say: classes, numbers or whatever its objective predicts."""

import dataclasses
from typing import Any

from bertjax.data.labeled.base import WHERE, LabeledExamples, LabeledFormat, Record
from bertjax.errors import UserError
from bertjax.export import Export
from bertjax.inference.base import Use
from bertjax.objectives.base import Objective


def has_predictions(model: Export) -> bool:
    """Whether the objective of a model says something of records, and its format can make examples of them."""
    task = model.config.task
    says = type(task.objective).predictions is not Objective.predictions
    return says and isinstance(task.examples, LabeledFormat) and bool(task.examples.inputs)


@dataclasses.dataclass(frozen=True, eq=False)
class Trained(Use):
    """Asks the objective that the model was fine-tuned for; records need no label."""

    def __post_init__(self):
        if not has_predictions(self.model):
            raise UserError(
                "the model was not fine-tuned for a task that is told record by record, in fields of text; "
                "use --do=embed"
            )

    @property
    def fields(self) -> tuple[str, ...]:
        return self.model.config.task.examples.inputs

    @property
    def group(self) -> int:
        return self.model.config.task.objective.group

    def encode(self, records: list[Record]) -> LabeledExamples:
        task = self.model.config.task
        return task.examples.encode(self._asked(records), self.model.tokenizer, self.seq_len, task.objective.classes)

    def outputs(self, params, batch):
        objective = self.model.config.task.objective
        return objective.outputs(objective.module(self.model.encoder), params, batch)

    def predictions(self, outputs, examples: LabeledExamples, records) -> list[dict[str, Any]]:
        asked = self._asked(records)
        of_each = [asked[number] for number in examples.record_of]
        return self.model.config.task.objective.predictions(outputs, examples.ragged, of_each)

    def _asked(self, records: list[Record]) -> list[Record]:
        """The records without labels and whatever else they came with."""
        return [{name: record[name] for name in (*self.fields, WHERE)} for record in records]
