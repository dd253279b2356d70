"""The settings of a configuration as a list: each with its value, its default and its line of documentation.

The documentation is that of the dataclasses, `Attributes` of their docstrings. `bertjax train --settings` prints it,
and the reference of the site is made from it.
"""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

from bertjax.config import registry, typed
from bertjax.config.config import CONFIG_UNIONS, Config, plain
from bertjax.runtime.errors import UserError

_ATTRIBUTE = re.compile(r"^  (\w+(?:, \w+)*): (.*)$")
# A required setting has no default; this stands for it.
REQUIRED = "required"


class Setting(NamedTuple):
    """One setting.

    Attributes:
      path: dotted name, as in `--config.PATH=VALUE`.
      value: value in the configuration.
      default: value if nothing is set; None as well for what a named part, such as a task, has no default for.
      doc: what it is.
    """

    path: str
    value: Any
    default: Any
    doc: str


def settings_of(config: Config, prefix: str = "") -> list[Setting]:
    """Return all settings of a configuration, in the order of its dataclasses.

    Args:
      config: the configuration.
      prefix: return only settings that start with it, such as `optimizer` or `stages.0`.

    Raises:
      UserError: no setting starts with the prefix.
    """
    start = f"{prefix}." if prefix else ""
    found = [setting for setting in _walk(config, Config(), "") if f"{setting.path}.".startswith(start)]
    if not found:
        raise UserError(f"no setting starts with {prefix!r}; --settings without a value lists all of them")
    return found


def docs_of(kind: type) -> dict[str, str]:
    """Return {attribute: documentation} of a dataclass, from the `Attributes` of it and of its bases."""
    docs: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        _, _, attributes = (inspect.cleandoc(vars(cls).get("__doc__") or "")).partition("Attributes:\n")
        names: list[str] = []
        for line in attributes.splitlines():
            if match := _ATTRIBUTE.match(line):
                names = match[1].split(", ")
                docs |= dict.fromkeys(names, match[2])
            elif line.startswith("    "):
                docs |= {name: f"{docs[name]} {line.strip()}" for name in names}
            elif line.strip():
                break  # the section ends where the indentation does
    return docs


def as_text(settings: list[Setting], width: int = 100) -> str:
    """Return settings as text: `path = value`, the default if it differs, and the documentation below."""
    lines = []
    for setting in settings:
        is_default = setting.value == setting.default
        default = "" if is_default or setting.default is None else f"  (default {shown(setting.default)})"
        lines.append(f"{setting.path} = {shown(setting.value)}{default}")
        lines += textwrap.wrap(setting.doc, width, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def shown(value: Any) -> str:
    return value if value == REQUIRED else repr(plain(value))


def _walk(value: Any, default: Any, path: str) -> Iterator[Setting]:
    """Yield the settings below a dataclass.

    Args:
      value: the dataclass.
      default: what stands there if nothing is set: a masking of ELECTRA has other defaults than one of BERT.
      path: its dotted name.
    """
    docs, union = docs_of(type(value)), union_of(type(value))
    if union:
        usual = union.kind_of(default) if isinstance(default, union.base) else union.default
        kinds = f"one of {', '.join(union.kinds)}; or a class of your own, module:Class"
        yield Setting(_join(path, "kind"), union.kind_of(value), usual, kinds)
    for field in dataclasses.fields(value):
        if not field.init or field.metadata.get("is_derived"):
            continue
        own, doc = getattr(value, field.name), docs.get(field.name, "")
        usual = getattr(default, field.name) if type(default) is type(value) else default_of(field)
        yield from _at(_join(path, field.name), own, usual, doc)


def _at(path: str, value: Any, default: Any, doc: str) -> Iterator[Setting]:
    """Yield one setting, or the settings of the parts that it has."""
    if dataclasses.is_dataclass(value):
        yield from _walk(value, default, path)
        return
    parts = dict(enumerate(value)) if isinstance(value, tuple) else value
    if isinstance(parts, dict) and any(map(dataclasses.is_dataclass, parts.values())):
        usual = default[0] if isinstance(value, tuple) and default else None  # every stage with the default one
        for name, entry in parts.items():
            yield from _at(_join(path, str(name)), entry, usual, doc)
    else:
        yield Setting(path, value, default, doc)


def default_of(field: dataclasses.Field) -> Any:
    """Return the default of a dataclass's field; `REQUIRED` if it has none."""
    is_required = field.default is field.default_factory is dataclasses.MISSING
    return REQUIRED if is_required else typed.default_of(field)


def union_of(kind: type) -> registry.Union | None:
    """Return the union that a class is a member of; None for a class that no `kind` chooses."""
    return next((union for union in CONFIG_UNIONS if issubclass(kind, union.base)), None)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
