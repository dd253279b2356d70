"""In what the configurations of runs differ."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.comparison.runs import Entry, Run
from bertjax.config import to_dict

_WIDTH = 32
# Characters that are seen of long texts before they part.
_SEEN_BEFORE = 8

# Names of settings -> for each entry the distinct values of its runs; None where a run has no such setting.
Rows = dict[str, list[tuple[Any, ...]]]


@dataclasses.dataclass(frozen=True)
class Differences:
    """Settings whose values are not the same in all entries, by dotted name.

    Attributes:
      identity: of what a run is.
      execution: of how it is carried out: `eval`, `runtime`, and where data lies.
      content: fingerprints of what was read, which the same path need not give twice.
    """

    identity: Rows
    execution: Rows
    content: Rows


def differences_of(entries: Sequence[Entry]) -> Differences:
    """Compares the configurations of all entries, defaults included."""
    settings = [[leaves(to_dict(run.config)) for run in entry.runs] for entry in entries]
    content = [[_content_of(run) for run in entry.runs] for entry in entries]
    identifying = {name for entry in entries for run in entry.runs for name in leaves(run.config.identity(""))}
    rows = _differing(settings)
    return Differences(
        {name: values for name, values in rows.items() if name in identifying},
        {name: values for name, values in rows.items() if name not in identifying},
        _differing(content),
    )


def leaves(nested: Any, path: str = "") -> dict[str, Any]:
    """{`a.0.b`: value} of nested dicts and lists, as a user overrides them.

    A list of plain values is one value, and what is empty has none.
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
    """Cuts long texts around the first place where they differ; all of each where two would look the same.

    Of a single one its end stays, which says most of a path.
    """
    distinct = set(texts)
    long = [text for text in distinct if len(text) > width]
    begin = max(len(os.path.commonprefix(long)) - _SEEN_BEFORE, 0)
    short = {text: _window(text, begin, width) for text in distinct}
    return [short[text] for text in texts] if len(set(short.values())) == len(distinct) else list(texts)


def text_of(values: tuple[Any, ...]) -> str:
    """The values of an entry as a person reads them; a dash where there is none."""
    return ", ".join(
        "-" if value is None else value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
        for value in values
    )


def _window(text: str, begin: int, width: int) -> str:
    if len(text) <= width:
        return text
    begin = min(begin, len(text) - width)
    before, after = "…" if begin else "", "…" if begin + width < len(text) else ""
    return f"{before}{text[begin : begin + width]}{after}"


def _content_of(run: Run) -> dict[str, Any]:
    """What the identity holds besides the configuration; plans, which follow from it and the store, left out."""
    stated = leaves(run.config.identity("")).keys() - {"data.store_fingerprint"}
    found = {name: value for name, value in run.identity.items() if name != "plans"}
    return {name: value for name, value in leaves(found).items() if name not in stated}


def _differing(of_entries: Sequence[Sequence[Mapping[str, Any]]]) -> Rows:
    names = dict.fromkeys(name for of_runs in of_entries for found in of_runs for name in found)
    rows = {
        name: [tuple(_distinct([found.get(name) for found in of_runs])) for of_runs in of_entries] for name in names
    }
    return {name: values for name, values in rows.items() if any(each != values[0] for each in values)}


def _distinct(values: list[Any]) -> list[Any]:
    """In their order; lists among them cannot be hashed."""
    return [value for index, value in enumerate(values) if value not in values[:index]]
