"""The differences between the configurations of runs."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.comparison.runs import Entry, Run

_WIDTH = 32
# Characters that are shown before the first difference of long texts.
_SHOWN_BEFORE = 8

# Parts of an identity that follow from settings and data, and the one that has the name of a setting and is content.
_NO_CONTENT, _START = ("plans", "skip_rows", "task_order"), "init_from"

# Setting -> for each entry the distinct values of its runs; None if a run lacks the setting.
Rows = dict[str, list[tuple[Any, ...]]]


@dataclasses.dataclass(frozen=True)
class Differences:
    """Settings whose values are not the same in all entries, by dotted name.

    Attributes:
      identity: settings of the run's identity.
      execution: settings of its execution: `eval`, `runtime`, and the paths of data.
      content: fingerprints of data, which may differ for one path.
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
    """Return {`a.0.b`: value} of nested dicts and lists, with the names of overrides.

    A list of plain values is one value; an empty dict has none.
    """
    if isinstance(nested, Mapping):
        inner = nested.items()
    elif isinstance(nested, list) and not (nested and isinstance(nested[0], str | int | float)):
        inner = enumerate(nested)
    else:
        return {path: nested}
    return {
        name: value
        for key, entry in inner
        for name, value in leaves(entry, f"{path}.{key}" if path else str(key)).items()
    }


def shorten(texts: Sequence[str], width: int = _WIDTH) -> list[str]:
    """Cut long texts around their first difference; none is cut if two would look the same.

    A single text keeps its end, the most informative part of a path.
    """
    distinct = set(texts)
    long = [text for text in distinct if len(text) > width]
    start = max(len(os.path.commonprefix(long)) - _SHOWN_BEFORE, 0)
    short = {text: _window(text, start, width) for text in distinct}
    return [short[text] for text in texts] if len(set(short.values())) == len(distinct) else list(texts)


def text_of(values: tuple[Any, ...]) -> str:
    """Return the values of an entry as text; a dash for None."""
    return ", ".join(
        "-" if value is None else value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
        for value in values
    )


def _window(text: str, start: int, width: int) -> str:
    if len(text) <= width:
        return text
    start = min(start, len(text) - width)
    before, after = "…" if start else "", "…" if start + width < len(text) else ""
    return f"{before}{text[start : start + width]}{after}"


def _content_of(run: Run) -> dict[str, Any]:
    """Return the identity without the configuration, and without plans, which follow from configuration and store."""
    identity = {name: value for name, value in run.identity.items() if name not in _NO_CONTENT}
    stated = _identifying(run)
    return {name: value for name, value in leaves(identity).items() if name not in stated}


def _identifying(run: Run) -> set[str]:
    """Return the names of the settings that are part of the identity."""
    return (leaves(run.identity).keys() & leaves(run.settings).keys()) - {_START}


def _differing(entries: Sequence[Sequence[Mapping[str, Any]]]) -> Rows:
    names = dict.fromkeys(name for runs in entries for settings in runs for name in settings)
    rows = {name: [tuple(_distinct([settings.get(name) for settings in runs])) for runs in entries] for name in names}
    return {name: cells for name, cells in rows.items() if any(cell != cells[0] for cell in cells)}


def _distinct(values: list[Any]) -> list[Any]:
    """Return the distinct values in order; they may be lists, which cannot be hashed."""
    return [value for index, value in enumerate(values) if value not in values[:index]]
