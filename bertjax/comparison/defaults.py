"""Settings that differ from the defaults of their classes."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from bertjax.config.config import Config, plain

_UNSET = object()
# Derived from `runtime`, so not a setting on its own.
_DERIVED = "execution"


def changes_of(config: Config) -> dict[str, tuple[Any, Any]]:
    """Return {dotted setting name: (value, default)} for settings that differ; a missing default is None.

    Every stage is compared with the default stage, and settings under a `kind` with the defaults of its own class.
    """
    return {name: (plain(value), plain(default)) for name, value, default in _changes(config, Config(), "")}


def _changes(value: Any, default: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if dataclasses.is_dataclass(value):
        if type(value) is not type(default):
            # Another class than the default one: its fields are compared with its own defaults.
            if (kind := _kind_of(value)) is not None:
                yield f"{path}.kind", kind, _kind_of(default)
            default = None
        for field in dataclasses.fields(value):
            if field.name not in ("kind", _DERIVED):
                standard = _default_of(field) if default is None else getattr(default, field.name)
                yield from _changes(getattr(value, field.name), standard, f"{path}.{field.name}".lstrip("."))
    elif isinstance(value, dict) and value:
        known = default if isinstance(default, dict) else {}
        for key, entry in value.items():
            yield from _changes(entry, known.get(key, _UNSET), f"{path}.{key}")
    elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        for index, entry in enumerate(value):
            # The default has one entry (one stage): each entry is compared with it.
            standard = default[0] if isinstance(default, tuple) and default else None
            yield from _changes(entry, standard, f"{path}.{index}")
    elif value != default:
        yield path, value, None if default is _UNSET else default


def _kind_of(value: Any) -> str | None:
    return plain(value).get("kind") if dataclasses.is_dataclass(value) else None


def _default_of(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _UNSET if field.default is dataclasses.MISSING else field.default
