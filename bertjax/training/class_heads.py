"""Heads of `init_from` whose outputs are classes: they are matched to the classes of the run by name, not by number.

A published model has its labels in an order of its own, and a file may have other labels of the same number. Weights
that are taken over by their shape would then give each class the output of another one.
"""

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from bertjax.config import Config
from bertjax.data.labeled import labels
from bertjax.errors import shorten
from bertjax.objectives.base import Objective
from bertjax.objectives.finetuning.classification import Classification
from bertjax.objectives.finetuning.embeddings import EmbeddingClassification
from bertjax.objectives.finetuning.multi_label import MultiLabel
from bertjax.objectives.finetuning.regression import Regression
from bertjax.objectives.finetuning.tagging import Tagging

# Objectives whose head has one output for each class; the last axis of all its parameters is that of the outputs.
_OUTPUT_FOR_EACH_CLASS = (Classification, EmbeddingClassification, MultiLabel, Tagging)

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Head:
    """A head of the run.

    Attributes:
      place: its keys in `params["heads"]`: its name, after that of the task if each task has heads of its own.
      objective: the objective that trains it.
      source: the settings of the objective that trained it in the source; empty if the source has no such task.
    """

    place: tuple[str, ...]
    objective: Objective
    source: Mapping[str, Any]

    @property
    def path(self) -> str:
        return "/".join(("heads", *self.place))


def match(params: dict, settings: Mapping[str, Any], config: Config) -> dict:
    """Return the parameters of a source with the outputs of its heads in the order of the classes of a run.

    A head with other classes is left out, so that the run initializes it. Both is logged.

    Args:
      params: nested parameters of the source; they are not changed.
      settings: its configuration.
      config: the configuration of the run, its classes resolved.
    """
    for head in _heads(settings, config):
        leaves = _at(params.get("heads", {}), head.place)
        if not leaves or any(isinstance(leaf, Mapping) for leaf in leaves.values()):
            continue
        if isinstance(head.objective, Regression):
            log.info(
                "init_from=%s has predicted numbers with %s: the run starts with it, on the scale that it had",
                config.init_from,
                head.path,
            )
            continue
        theirs, ours = tuple(head.source.get("classes", ())), head.objective.classes
        if theirs == ours:
            continue
        index = _outputs_of(ours, theirs)
        if index is None:
            log.warning(
                "init_from=%s has the classes %s in %s and the run has %s: it starts with a new head",
                config.init_from,
                shorten(theirs, 8) or "none",
                head.path,
                shorten(ours, 8),
            )
            params = _replaced(params, ("heads", *head.place), None)
        else:
            log.info(
                "init_from=%s has the classes of %s as %s: its outputs are put into the order of the run, %s",
                config.init_from,
                head.path,
                shorten(theirs, 8),
                shorten(ours, 8),
            )
            permuted = {name: leaf[..., index] for name, leaf in leaves.items()}
            params = _replaced(params, ("heads", *head.place), permuted)
    return params


def _heads(settings: Mapping[str, Any], config: Config) -> Iterator[_Head]:
    """Yield the heads of a run that predict classes or numbers."""
    tasks = settings.get("tasks", {})
    for name, task in config.tasks.items():
        objective = task.objective
        if not isinstance(objective, (*_OUTPUT_FOR_EACH_CLASS, Regression)):
            continue
        place = (name, objective.term) if config.has_own_heads else (objective.term,)
        source = tasks.get(name, {}) if config.has_own_heads else next(iter(tasks.values()), {})
        yield _Head(place, objective, source.get("objective", {}))


def _outputs_of(ours: tuple[str, ...], theirs: tuple[str, ...]) -> list[int] | None:
    """Return the output of the source for each class of the run; None if the sets of classes differ."""
    classes = labels.matched(ours, theirs)
    if len(ours) != len(theirs) or len(set(classes.values())) != len(theirs):
        return None
    return [theirs.index(classes[name]) for name in ours]


def _at(params: Mapping[str, Any], place: tuple[str, ...]) -> Mapping[str, Any]:
    for key in place:
        params = params.get(key, {})
    return params


def _replaced(params: dict, place: tuple[str, ...], value: dict | None) -> dict:
    """Return nested dicts with another value at a place, or without it if the value is None."""
    first, *rest = place
    if rest:
        return params | {first: _replaced(params[first], tuple(rest), value)}
    return {name: leaf for name, leaf in params.items() if name != first} | ({first: value} if value else {})
