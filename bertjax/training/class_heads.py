"""Match class outputs in heads from `init_from` to the run's classes by name.

Published models order their labels arbitrarily, and a file may have the same number of other labels. Copying head
weights by shape would then assign outputs to the wrong classes.
"""

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from bertjax.config.config import Config
from bertjax.data.labeled import labels
from bertjax.objectives.base import Objective
from bertjax.objectives.finetuning.classification import Classification
from bertjax.objectives.finetuning.embeddings import EmbeddingClassification
from bertjax.objectives.finetuning.multi_label import MultiLabel
from bertjax.objectives.finetuning.regression import Regression
from bertjax.objectives.finetuning.tagging import Tagging
from bertjax.objectives.wrapper import unwrapped
from bertjax.runtime.errors import shorten

# The last layer of `bertjax.models.label_heads.LabelHead`; other heads have only one.
_LAST_LAYER = "classifier"
# Objectives with one head output per class; outputs are the last axis in all parameters of the last layer.
_OUTPUT_FOR_EACH_CLASS = (Classification, EmbeddingClassification, MultiLabel, Tagging)

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Head:
    """A head in the run.

    Attributes:
      place: keys in `params["heads"]`: the head's name, preceded by the task if every task has its own heads.
      objective: objective that trains it.
      source: settings of the objective that trained it in `init_from`; empty if there is no such task.
    """

    place: tuple[str, ...]
    objective: Objective
    source: Mapping[str, Any]

    @property
    def path(self) -> str:
        return "/".join(("heads", *self.place))


def match(params: dict, settings: Mapping[str, Any], config: Config) -> dict:
    """Reorder head outputs in `init_from` parameters to match the run's classes.

    Heads with other classes are dropped, so that the run initializes them. Both cases are logged.

    Args:
      params: nested source parameters; not modified.
      settings: the source's configuration.
      config: the run's configuration, with resolved classes.
    """
    for head in _heads(settings, config):
        leaves, place = _at(params.get("heads", {}), head.place), head.place
        if _LAST_LAYER in leaves:
            leaves, place = leaves[_LAST_LAYER], (*place, _LAST_LAYER)
        if not leaves or any(isinstance(leaf, Mapping) for leaf in leaves.values()):
            continue
        if isinstance(head.objective, Regression):
            log.info(
                "init_from=%s has predicted numbers with %s: the run starts with it, on the scale that it had",
                config.init_from,
                head.path,
            )
            continue
        # The same names in the same order: the weights fit as they are.
        theirs, ours = tuple(head.source.get("classes", ())), head.objective.classes
        if theirs == ours:
            continue
        index = labels.places_of(ours, theirs)
        if index is None:
            log.warning(
                "init_from=%s has the classes %s in %s and the run has %s: it starts with a new head",
                config.init_from,
                shorten(theirs, 8) or "none",
                head.path,
                shorten(ours, 8),
            )
            params = _replaced(params, ("heads", *place), None)
        else:
            log.info(
                "init_from=%s has the classes of %s as %s: its outputs are put into the order of the run, %s",
                config.init_from,
                head.path,
                shorten(theirs, 8),
                shorten(ours, 8),
            )
            permuted = {name: leaf[..., index] for name, leaf in leaves.items()}
            params = _replaced(params, ("heads", *place), permuted)
    return params


def _heads(settings: Mapping[str, Any], config: Config) -> Iterator[_Head]:
    """Yield the run's heads that predict classes or numbers."""
    tasks = settings.get("tasks", {})
    for name, task in config.tasks.items():
        objective = unwrapped(task.objective)
        if not isinstance(objective, (*_OUTPUT_FOR_EACH_CLASS, Regression)):
            continue
        place = (name, objective.term) if config.has_own_heads else (objective.term,)
        # With a single task its name does not matter: the source may have called it differently.
        source = tasks.get(name, {}) if config.has_own_heads else next(iter(tasks.values()), {})
        yield _Head(place, objective, source.get("objective", {}))


def _at(params: Mapping[str, Any], place: tuple[str, ...]) -> Mapping[str, Any]:
    for key in place:
        params = params.get(key, {})
    return params


def _replaced(params: dict, place: tuple[str, ...], value: dict | None) -> dict:
    """Return nested dicts with one value replaced, or removed if the new value is None."""
    first, *rest = place
    if rest:
        return params | {first: _replaced(params[first], tuple(rest), value)}
    return {name: leaf for name, leaf in params.items() if name != first} | ({first: value} if value else {})
