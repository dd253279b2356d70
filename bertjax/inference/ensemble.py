"""Ensembles: average the outputs of several models fine-tuned on one task, such as seeds of a recipe."""

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from bertjax.config.config import config_of
from bertjax.config.export import Export
from bertjax.data.formats import FORMATS
from bertjax.inference.base import Request
from bertjax.inference.predictor import Predictor
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import PLACE, TRAINING_ONLY

# Objective settings that affect training or comparison, but not predictions.
_OF_TRAINING = ("label_smoothing", "balanced", "class_weights", "metric", "precision")


class Ensemble(Predictor):
    """Predicts the mean over its models: of probabilities, numbers or, for questions, span logits.

    Settings tuned per run, such as a threshold, are averaged too. But a mean of probabilities is less sure than its
    members, so that their temperatures, and thresholds at these, would correct it twice: it has neither.

    Args:
      models: {name: model}, at least one; task, tokenizer and number of positions must agree.

    Raises:
      UserError: a model's outputs are not comparable with the first one's.
    """

    def __init__(self, models: Mapping[str, Export]):
        (first, model), *others = models.items()
        super().__init__(_with_means(models.values()))
        self._members = [Predictor(other) for _, other in others]
        for name, other in others:
            for part, of_first, of_other in (
                # All models read the examples that the first one has encoded, so tokenizer and length must agree.
                ("tokenizer", model.tokenizer.fingerprint, other.tokenizer.fingerprint),
                ("task", _task(model), _task(other)),
                ("stages.N.seq_len", model.lengths, other.lengths),
            ):
                if of_first != of_other:
                    raise UserError(f"{name} has another {part} than {first}; average models of one fine-tuning recipe")

    def outputs(
        self, request: Request, on_tokens: Callable[[int], object] = lambda tokens: None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield the mean of the models' arrays for each part of the records; see `Predictor.outputs`.

        Raises:
          UserError: the models predict classes without probabilities.
        """
        # The examples are encoded once, by the first model, and shared by all.
        members = [member.outputs(Request(member.task(), request.parts)) for member in self._members]
        for parts in zip(super().outputs(request, on_tokens), *members, strict=True):
            for name, array in parts[0].items():
                # Class numbers (integers) have no meaningful mean.
                if not np.issubdtype(array.dtype, np.floating):
                    raise UserError(f"the models predict {name} without probabilities; remove --with")
            yield {name: np.mean([part[name] for part in parts], axis=0) for name in parts[0]}


def _task(model: Export) -> dict[str, Any]:
    """Return the task settings that predictions depend on, without settings that a run tunes."""
    [settings, *_] = model.settings["tasks"].values()
    free = *_OF_TRAINING, *_tuned_settings(model)
    objective = {name: value for name, value in settings["objective"].items() if name not in free}
    of_files = FORMATS.marked(PLACE, TRAINING_ONLY)
    examples = {name: value for name, value in settings["examples"].items() if name not in of_files}
    return {"objective": objective, "examples": examples}


def _tuned_settings(model: Export) -> tuple[str, ...]:
    return config_of(model).task.objective.traits.tuned_settings


def _with_means(models: Collection[Export]) -> Export:
    """Return the first model, with tuned settings replaced by their means over all models."""
    first, *_ = models
    settings = first.settings
    is_calibrated = "temperature" in _tuned_settings(first)
    for name in _tuned_settings(first):
        task, *_ = settings["tasks"]
        values = [next(iter(model.settings["tasks"].values()))["objective"].get(name) for model in models]
        if values := [value for value in values if value is not None]:
            mean = statistics.fmean(values) if len(models) == 1 or not is_calibrated else None
            objective = settings["tasks"][task]["objective"] | {name: mean}
            settings = settings | {"tasks": {task: settings["tasks"][task] | {"objective": objective}}}
    return first._replace(settings=settings)
