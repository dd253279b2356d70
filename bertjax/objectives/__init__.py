"""Objectives: one file each. The registry names them; one that lives elsewhere is named by `module:Class`."""

import importlib

from bertjax.errors import UserError
from bertjax.objectives.base import Objective

KINDS = {
    "mlm": "bertjax.objectives.mlm:MaskedLM",
    "bert": "bertjax.objectives.bert:BERT",
    "sentence_order": "bertjax.objectives.sop:SentenceOrderPrediction",
    "sentence_structure": "bertjax.objectives.structure:SentenceStructurePrediction",
}


def objective_class(kind: str | None) -> type[Objective]:
    """The class of an objective, by its registered kind or as `module:Class`; BERT's where none is said.

    Raises:
      UserError: no such kind, or nothing importable under that name.
    """
    kind = kind or "bert"
    if kind not in KINDS and ":" not in kind:
        raise UserError(f"objective.kind={kind!r} is unknown; choose one of {', '.join(KINDS)}, or name module:Class")
    module_name, _, class_name = KINDS.get(kind, kind).partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"objective.kind={kind!r} cannot be imported: {error}; is its folder on PYTHONPATH?") from error
    if not (isinstance(found, type) and issubclass(found, Objective)):
        raise UserError(f"objective.kind={kind!r} is no Objective; derive it from bertjax.objectives.base.Objective")
    return found


def kind_of(objective: Objective) -> str:
    """The name under which `objective_class` finds an objective's class again."""
    name = f"{type(objective).__module__}:{type(objective).__qualname__}"
    return next((kind for kind, known in KINDS.items() if known == name), name)
