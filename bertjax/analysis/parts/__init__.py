"""The parts of the analysis, one file each, in page order."""

import importlib
from collections.abc import Sequence

from bertjax.analysis import PARTS
from bertjax.analysis.part import Part
from bertjax.runtime.errors import UserError


def part_of(name: str) -> Part:
    """Return a part by name, importing only its module.

    Raises:
      UserError: there is no such part.
    """
    if name not in PARTS:
        raise UserError(f"part {name!r} is unknown; choose among {', '.join(PARTS)}")
    module, _, attribute = PARTS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)()


def parts_of(names: Sequence[str]) -> list[Part]:
    """Return parts in page order, each once; without names, all parts except those with `Part.named_only`.

    Raises:
      UserError: there is no such part.
    """
    for name in names:
        part_of(name)
    parts = [part_of(name) for name in PARTS if name in names or not names]
    return [part for part in parts if part.name in names or not part.named_only]
