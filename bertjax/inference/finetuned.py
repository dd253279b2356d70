"""Predictions of a fine-tuned model: classes, numbers, or whatever its objective's `predictions` returns."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, cast

from bertjax.config.config import Task
from bertjax.config.export import Export
from bertjax.data.formats import FORMATS
from bertjax.data.labeled.base import WHERE, LabeledExamples, LabeledFormat, Record
from bertjax.inference.base import Pipeline, config_of
from bertjax.inference.masked import masked_lm
from bertjax.inference.records import read_inputs, with_best, with_tags
from bertjax.objectives.base import Objective
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import Allowed


def has_predictions(model: Export) -> bool:
    """Return whether a model's objective has predictions, and its format can encode records without labels."""
    try:
        [settings, *_] = model.settings["tasks"].values()
        # Only the format's class is looked up here: a format may come with bertjax while its objective needs a trusted
        # import.
        if not issubclass(FORMATS.class_of(settings["examples"]["kind"]), LabeledFormat):
            return False  # pretrained: the objective is not imported
    except (KeyError, ValueError, TypeError, AttributeError):
        pass  # the settings have no such entry: the defaults apply, or building the configuration refuses them
    task = config_of(model).task
    if not isinstance(task.examples, LabeledFormat):
        return False
    return type(task.objective).predictions is not Objective.predictions and bool(task.examples.inputs)


@dataclasses.dataclass(frozen=True, eq=False)
class FineTuned(Pipeline):
    """Applies the objective that the model was fine-tuned for to records without labels.

    Attributes:
      top: number of classes in `probabilities`, most probable first; 0 for all, in class order.
      columns: (setting of the examples, column) pairs, if columns differ from those of the training file.
      threshold: in place of the `threshold` of the objective; None for that one.
    """

    top: int = 0
    columns: tuple[tuple[str, str | int], ...] = ()
    threshold: float | None = None

    def __post_init__(self):
        Allowed(least=0, hint="0 gives the probabilities of all classes").check("top", self.top)
        if not has_predictions(self.model):
            others = "--do=embed" if masked_lm(self.model) is None else "--do=fill or --do=embed"
            raise UserError(f"the model was not fine-tuned to predict something for each record; use {others}")
        if len(tasks := self.model.settings["tasks"]) > 1:
            raise UserError(
                f"the model was fine-tuned on {', '.join(tasks)}; choose one with --task or bertjax.predictor(task=...)"
            )

    @functools.cached_property
    def _task(self) -> Task:
        task = config_of(self.model).task
        examples = cast(LabeledFormat, task.examples).with_columns(dict(self.columns))
        objective = task.objective
        if self.threshold is not None:
            if "threshold" not in {field.name for field in dataclasses.fields(objective)}:
                raise UserError(
                    f"threshold={self.threshold:g} has no effect on objective.kind={task.kind}; leave it out"
                )
            objective = dataclasses.replace(cast(Any, objective), threshold=self.threshold)
        return dataclasses.replace(task, examples=examples, objective=objective)

    @property
    def _examples(self) -> LabeledFormat:
        return cast(LabeledFormat, self._task.examples)

    @property
    def objective(self) -> Objective:
        return self._task.objective

    @property
    def remarks(self) -> list[str]:
        """One line per setting tuned during evaluation: the value that predictions use."""
        lines, traits = [], self.objective.traits
        for name in traits.tuned_settings:
            value = getattr(self.objective, name)
            if name == "threshold" and self.threshold is not None:
                continue
            if value is not None:
                lines.append(f"objective.{name}={value:.4f}, as it was tuned on the held-out file of the training")
            # Without a temperature, probabilities are simply those of the model, as in a converted one.
            elif name != "temperature":
                use = f"use {traits.untuned[name]:g}" if name in traits.untuned else "do without it"
                lines.append(f"objective.{name} was not tuned: no evaluation at this step; predictions {use}")
        return lines

    @property
    def fields(self) -> tuple[str, ...]:
        return self._examples.inputs

    @property
    def list_field(self) -> str:
        return self._examples.list_input

    def read(self, path: str) -> list[Record]:
        return read_inputs(self._examples, path, self.objective.classes)

    def with_answers(self, path: str, predictions: Iterator[dict[str, Any]]) -> Iterator[str] | None:
        return with_tags(self._examples, path, predictions, self.objective.classes)

    @functools.cached_property
    def seq_len(self) -> int:
        """T of the training, which a group of examples shares."""
        return self.model.lengths.row

    @property
    def group(self) -> int:
        return self.objective.traits.group

    def predictions(self, outputs, examples):
        predictions = super().predictions(outputs, examples)
        if not self.top:
            return predictions
        if not all(isinstance(record.get("probabilities"), dict) for record in predictions):
            raise UserError(f"top={self.top} has no effect on a model without probabilities of classes; leave it out")
        return [with_best(record, self.top) for record in predictions]

    def encode(self, records: list[Record]) -> LabeledExamples:
        """Return the examples for records, without labels and other fields that the model does not read."""
        # Labels in the file are dropped: a prediction must not depend on them, and they may be unknown to the model.
        field = self.list_field  # empty for most formats, as the header of a column may be
        names = [(field,) if isinstance(record.get(field), list) else self.fields for record in records]
        inputs = [{name: record[name] for name in (*own, WHERE)} for own, record in zip(names, records, strict=True)]
        return self._examples.encode(inputs, self.model.tokenizer, self.seq_len, self.objective.classes)
