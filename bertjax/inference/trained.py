"""What a fine-tuned model was trained to say: classes, numbers or whatever its objective predicts."""

import dataclasses
import functools
from typing import Any

from bertjax.config import Task, from_dict
from bertjax.data.formats import FORMATS
from bertjax.data.labeled.base import WHERE, LabeledExamples, LabeledFormat, Record
from bertjax.errors import UserError
from bertjax.export import Export
from bertjax.inference.base import Use
from bertjax.objectives.base import Objective


def has_predictions(model: Export) -> bool:
    """Whether the objective of a model says something of records, and its format can make examples of them."""
    [settings, *_] = model.settings["tasks"].values()
    if not issubclass(FORMATS.class_of(settings["examples"]["kind"]), LabeledFormat):
        return False  # pretrained: the objective is not imported
    task = from_dict(model.settings).task
    return type(task.objective).predictions is not Objective.predictions and bool(task.examples.inputs)


@dataclasses.dataclass(frozen=True, eq=False)
class Trained(Use):
    """Asks the objective that the model was fine-tuned for; records need no label."""

    def __post_init__(self):
        if not has_predictions(self.model):
            raise UserError(
                "the model was not fine-tuned for a task that is told record by record, in fields of text; "
                "use --do=embed"
            )

    @functools.cached_property
    def _task(self) -> Task:
        return from_dict(self.model.settings).task

    @property
    def fields(self) -> tuple[str, ...]:
        return self._task.examples.inputs

    @property
    def group(self) -> int:
        return self._task.objective.group

    def encode(self, records: list[Record]) -> LabeledExamples:
        classes = self._task.objective.classes
        return self._task.examples.encode(self._asked(records), self.model.tokenizer, self.seq_len, classes)

    def outputs(self, params, batch):
        objective = self._task.objective
        return objective.outputs(objective.module(self.model.encoder), params, batch)

    def predictions(self, outputs, examples: LabeledExamples, records) -> list[dict[str, Any]]:
        asked = self._asked(records)
        of_each = [asked[number] for number in examples.record_of]
        return self._task.objective.predictions(outputs, examples.ragged, of_each)

    def _asked(self, records: list[Record]) -> list[Record]:
        """The records without labels and whatever else they came with."""
        return [{name: record[name] for name in (*self.fields, WHERE)} for record in records]
