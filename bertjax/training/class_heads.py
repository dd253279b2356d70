"""Match class outputs in heads from `init_from` to the run's classes by name.

Published models order their labels arbitrarily, and a file may have the same number of other labels. Copying head
weights by shape would then assign outputs to the wrong classes.
"""

import logging
from collections.abc import Mapping
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.config.config import Config
from bertjax.data.labeled import labels
from bertjax.models.label_heads import with_outputs
from bertjax.objectives.finetuning.classification import Classification
from bertjax.objectives.finetuning.embeddings import EmbeddingClassification
from bertjax.objectives.finetuning.multi_label import MultiLabel
from bertjax.objectives.finetuning.tagging import Tagging
from bertjax.objectives.wrapper import unwrapped
from bertjax.runtime.errors import shorten

# Objectives with one head output per class; outputs are the last axis in all parameters of the last layer.
_OUTPUT_FOR_EACH_CLASS = (Classification, EmbeddingClassification, MultiLabel, Tagging)

log = logging.getLogger(__name__)


def match(params: dict, settings: Mapping[str, Any], config: Config) -> dict:
    """Reorder head outputs in `init_from` parameters to match the run's classes.

    Heads with other classes are dropped, so that the run initializes them. Both cases are logged.

    Args:
      params: nested source parameters; not modified.
      settings: the source's configuration.
      config: the run's configuration, with resolved classes.
    """
    tasks, has_own_heads = settings.get("tasks", {}), config.has_own_heads
    heads: dict[str, Any] = params.get("heads", {})
    for name, task in config.tasks.items():
        objective = unwrapped(task.objective)
        if not isinstance(objective, _OUTPUT_FOR_EACH_CLASS):
            continue
        term, of_task = objective.term, heads.get(name, {}) if has_own_heads else heads
        head = f"heads/{name}/{term}" if has_own_heads else f"heads/{term}"
        # With a single task its name does not matter: the source may have called it differently.
        source = tasks.get(name, {}) if has_own_heads else next(iter(tasks.values()), {})
        theirs, ours = tuple(source.get("objective", {}).get("classes", ())), objective.classes
        if term not in of_task or theirs == ours:  # the same names in the same order: the weights fit as they are
            continue
        index = labels.places_of(ours, theirs)
        if index is None:
            log.warning(
                "init_from=%s has the classes %s in %s and the run has %s: it starts with a new head",
                *(config.init_from, shorten(theirs, 8) or "none", head, shorten(ours, 8)),
            )
        else:
            log.info(
                "init_from=%s has the classes of %s as %s: its outputs are put into the order of the run, %s",
                *(config.init_from, head, shorten(theirs, 8), shorten(ours, 8)),
            )
        of_task = {**of_task, term: with_outputs(of_task[term], index)}
        heads = {**heads, name: of_task} if has_own_heads else of_task
    if heads is params.get("heads"):
        return params
    return unflatten_dict(flatten_dict({**params, "heads": heads}))  # without layers that are left out
