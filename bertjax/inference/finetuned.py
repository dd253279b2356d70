"""Predictions of a fine-tuned model: classes, numbers, or whatever its objective's `predictions` returns."""

import dataclasses
import functools
from typing import Any, cast

from bertjax.config.config import config_of
from bertjax.config.export import Export
from bertjax.data.formats import FORMATS
from bertjax.data.labeled.base import LabeledFormat
from bertjax.inference.base import TaskPipeline
from bertjax.inference.masked import masked_lm
from bertjax.objectives.base import Objective
from bertjax.runtime.errors import UserError


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
class FineTuned(TaskPipeline):
    """Applies the objective that the model was fine-tuned for to records without labels."""

    def __post_init__(self):
        super().__post_init__()
        if not has_predictions(self.model):
            others = "--do=embed" if masked_lm(self.model) is None else "--do=fill or --do=embed"
            raise UserError(f"the model was not fine-tuned to predict something for each record; use {others}")
        if len(tasks := self.model.settings["tasks"]) > 1:
            raise UserError(
                f"the model was fine-tuned on {', '.join(tasks)}; choose one with --task or bertjax.predictor(task=...)"
            )

    @functools.cached_property
    def examples(self) -> LabeledFormat:
        return cast(LabeledFormat, config_of(self.model).task.examples).with_columns(dict(self.columns))

    @functools.cached_property
    def objective(self) -> Objective:
        task = config_of(self.model).task
        if self.threshold is None:
            return task.objective
        if "threshold" not in {field.name for field in dataclasses.fields(task.objective)}:
            raise UserError(f"threshold={self.threshold:g} has no effect on objective.kind={task.kind}; leave it out")
        return dataclasses.replace(cast(Any, task.objective), threshold=self.threshold)

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

    @functools.cached_property
    def seq_len(self) -> int:
        """T of the training, which a group of examples shares."""
        return self.model.lengths.row

    def outputs(self, params, batch):
        return self.objective.outputs(self.objective.model(self.model.encoder), params, batch)
