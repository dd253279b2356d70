"""Differences between run configurations."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.comparison.runs import Entry, Run

# Identity entries that follow from settings and data, and one that has the name of a setting but holds content.
_NO_CONTENT, _START = ("plans", "skip_rows", "task_order", "questions"), "init_from"

# Setting -> distinct values per entry, over its runs; None if a run lacks the setting.
Rows = dict[str, list[tuple[Any, ...]]]


@dataclasses.dataclass(frozen=True)
class Differences:
    """Settings with different values between entries, by dotted name.

    Attributes:
      identity: settings that are part of the run's identity.
      execution: other settings: `eval`, `runtime`, and data paths.
      content: data fingerprints, which may differ under one path.
    """

    identity: Rows
    execution: Rows
    content: Rows


def differences_of(entries: Sequence[Entry]) -> Differences:
    """Compare the configurations of all entries, including defaults."""
    settings = [[leaves(run.settings) for run in entry.runs] for entry in entries]
    content = [[_content_of(run) for run in entry.runs] for entry in entries]
    identifying = {name for entry in entries for run in entry.runs for name in _identifying(run)}
    rows = _differing(settings)
    return Differences(
        {name: values for name, values in rows.items() if name in identifying},
        {name: values for name, values in rows.items() if name not in identifying},
        _differing(content),
    )


def leaves(nested: Any, path: str = "") -> dict[str, Any]:
    """Flatten nested dicts and lists to {`a.0.b`: value}, with the names of overrides.

    A list of plain values is one value. An empty dict or list has no leaf.
    """
    if isinstance(nested, Mapping):
        inner = nested.items()
    # Lists of plain values stay whole, as a user would write them; lists of settings, such as stages, are indexed.
    elif isinstance(nested, list) and not (nested and isinstance(nested[0], str | int | float)):
        inner = enumerate(nested)
    else:
        return {path: nested}
    return {
        name: value
        for key, entry in inner
        for name, value in leaves(entry, f"{path}.{key}" if path else str(key)).items()
    }


def text_of(values: tuple[Any, ...]) -> str:
    """Return an entry's values as text; a dash for None."""
    return ", ".join(
        "-" if value is None else value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
        for value in values
    )


def _content_of(run: Run) -> dict[str, Any]:
    """Return the identity without settings, and without plans, which follow from settings and store."""
    identity = {name: value for name, value in run.identity.items() if name not in _NO_CONTENT}
    # Settings in the identity are compared as settings; only fingerprints remain here.
    stated = _identifying(run)
    return {name: value for name, value in leaves(identity).items() if name not in stated}


def _identifying(run: Run) -> set[str]:
    """Return the names of settings that are part of the identity."""
    return (leaves(run.identity).keys() & leaves(run.settings).keys()) - {_START}


def _differing(entries: Sequence[Sequence[Mapping[str, Any]]]) -> Rows:
    # A dict as an ordered set: settings keep the order of the configuration.
    names = dict.fromkeys(name for runs in entries for settings in runs for name in settings)
    rows = {name: [tuple(_distinct([settings.get(name) for settings in runs])) for runs in entries] for name in names}
    return {name: cells for name, cells in rows.items() if any(cell != cells[0] for cell in cells)}


def _distinct(values: list[Any]) -> list[Any]:
    """Return the distinct values in order; lists cannot be hashed, so no set is used."""
    return [value for index, value in enumerate(values) if value not in values[:index]]
