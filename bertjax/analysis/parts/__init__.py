"""The parts of the analysis, one file each, in the order of the page."""

import importlib
from collections.abc import Sequence

from bertjax.analysis.part import Part
from bertjax.errors import UserError

PARTS: dict[str, str] = {
    "patterns": "bertjax.analysis.parts.patterns:Patterns",
    "targets": "bertjax.analysis.parts.targets:Targets",
    "identifiability": "bertjax.analysis.parts.identifiability:Identifiability",
    "disabling": "bertjax.analysis.parts.disabling:Disabling",
    "importance": "bertjax.analysis.parts.importance:ImportanceOfParts",
    "curvature": "bertjax.analysis.parts.curvature:Curvature",
    "fixed": "bertjax.analysis.parts.fixed:Fixed",
    "layers": "bertjax.analysis.parts.layers:Layers",
    "sentences": "bertjax.analysis.parts.sentences:Sentences",
    "training": "bertjax.analysis.parts.training:Training",
}


def part_of(name: str) -> Part:
    """Return a part by its name; only its module is imported.

    Raises:
      UserError: there is no such part.
    """
    if name not in PARTS:
        raise UserError(f"part {name!r} is unknown; choose among {', '.join(PARTS)}")
    module, _, attribute = PARTS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)()


def parts_of(names: Sequence[str]) -> list[Part]:
    """Return parts in the order of the page, each once; if no name is given, all but those with `Part.named_only`.

    Raises:
      UserError: there is no such part.
    """
    for name in names:
        part_of(name)
    parts = [part_of(name) for name in PARTS if name in names or not names]
    return [part for part in parts if part.name in names or not part.named_only]
