"""The parts of the analysis, in page order."""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bertjax.runtime.errors import UserError

if TYPE_CHECKING:
    from bertjax.analysis.part import Part

# Import paths instead of classes: a part and its libraries are imported only if it runs.
PARTS: dict[str, str] = {
    "sentences": "bertjax.analysis.parts.sentences:Sentences",
    "patterns": "bertjax.analysis.parts.patterns:Patterns",
    "targets": "bertjax.analysis.parts.targets:Targets",
    "identifiability": "bertjax.analysis.parts.identifiability:Identifiability",
    "disabling": "bertjax.analysis.parts.heads:Disabling",
    "importance": "bertjax.analysis.parts.heads:ImportanceOfParts",
    "curvature": "bertjax.analysis.parts.curvature:Curvature",
    "fixed": "bertjax.analysis.parts.patterns:Fixed",
    "layers": "bertjax.analysis.parts.layers:Layers",
    "training": "bertjax.analysis.parts.training:Training",
}


def part_of(name: str) -> "Part":
    """Return a part by name, importing only its module.

    Raises:
      UserError: there is no such part.
    """
    if name not in PARTS:
        raise UserError(f"part {name!r} is unknown; choose among {', '.join(PARTS)}")
    module, _, attribute = PARTS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)()


def parts_of(names: Sequence[str]) -> "list[Part]":
    """Return parts in page order, each once; without names, all parts except those with `Part.named_only`.

    Raises:
      UserError: there is no such part.
    """
    parts = {name: part_of(name) for name in names or PARTS}
    return [parts[name] for name in PARTS if name in parts and (names or not parts[name].named_only)]
