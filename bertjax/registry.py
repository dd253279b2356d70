"""Classes by name: those of bertjax by their kind, those that live elsewhere as `module:Class`."""

import importlib
from collections.abc import Mapping
from typing import TypeVar

from bertjax.errors import UserError

T = TypeVar("T")


def known_class(setting: str, kind: str, kinds: Mapping[str, type[T]]) -> type[T]:
    """The class of a closed set that a kind stands for.

    Raises:
      UserError: no such kind.
    """
    if kind not in kinds:
        raise UserError(f"{setting}.kind={kind!r} is unknown; choose one of {', '.join(kinds)}")
    return kinds[kind]


def named_class(setting: str, kind: str, kinds: Mapping[str, str], base: type) -> type:
    """The class that a kind stands for.

    Args:
      setting: how the user names what has the kind.
      kind: a key of `kinds`, or `module:Class`.
      kinds: the registered ones, each with its `module:Class`.
      base: what the class must derive from.

    Raises:
      UserError: no such kind, nothing importable under that name, or not such a class.
    """
    said = f"{setting}.kind={kind!r}"
    if kind not in kinds and ":" not in kind:
        raise UserError(f"{said} is unknown; choose one of {', '.join(kinds)}, or name module:Class")
    module_name, _, class_name = kinds.get(kind, kind).partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{said} cannot be imported: {error}; is its folder on PYTHONPATH?") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UserError(f"{said} is no {base.__name__}; derive it from {base.__module__}.{base.__qualname__}")
    return found
