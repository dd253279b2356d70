"""Build typed, frozen dataclasses from nested mappings; errors name the nearest valid key or the expected type."""

import ast
import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, cast

from bertjax.config.registry import Choice
from bertjax.runtime.errors import UserError, quoted
from bertjax.runtime.setting import Allowed

# {declared field type: its classes}
Unions = Mapping[type, Choice]
# A setting that more kinds have, such as `classes` of objectives, does not tell which one is meant.
_MOST_KINDS = 2
_SHA256 = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")


def build(expected: Any, value: Any, path: str, unions: Unions, default: Any = None) -> Any:
    """Convert `value` to the type `expected`.

    Args:
      expected: a dataclass, `int`, `float`, `bool`, `str`, `tuple[X, ...]`, `dict[str, X]`, `X | None`, `str | float`,
        `Any` for any scalar, or a key of `unions`.
      value: nested mappings, sequences and scalars.
      path: dotted name of this value, for messages.
      unions: see `Unions`.
      default: what stands there if nothing is set. A mapping for a member of a union changes it, unless it names
        another kind: ELECTRA's masking keeps `mask=1` if only its rate is set.

    Raises:
      UserError: an unknown key (with the nearest known one), a value with the wrong type, or a non-finite number.
    """
    origin = typing.get_origin(expected)
    if origin is types.UnionType:
        first, *others = (option for option in typing.get_args(expected) if option is not types.NoneType)
        if value is None and types.NoneType in typing.get_args(expected):
            return None
        if first in unions and "kind" not in _mapping(path, value):
            raise UserError(f"{path} has no kind; add --config.{path}.kind=KIND")
        # The only other union is `str | float`, such as a file or a share.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return build(float if is_number and float in others else first, value, path, unions)
    if expected in unions or dataclasses.is_dataclass(expected):
        return _build_dataclass(expected, value, path, unions, default)
    if origin is tuple:
        # A string is iterable and would become a tuple of its characters.
        if isinstance(value, str) or not isinstance(value, (list, tuple)):
            is_bare = isinstance(value, str) and value.startswith("[")
            quoting = ', which a shell needs in single quotes: \'["a", "b"]\'' if is_bare else ""
            raise _wrong_type(path, value, f"a list{quoting}")
        item = typing.get_args(expected)[0]
        return tuple(build(item, entry, _join(path, str(i)), unions) for i, entry in enumerate(value))
    if expected is Any:  # an argument of a function that bertjax does not know
        if isinstance(value, bool | str | int):
            return value
        if isinstance(value, float):
            return _finite(path, value)
        raise _wrong_type(path, value, "a number, text, True or False")
    if origin is dict:
        item = typing.get_args(expected)[1]
        return {key: build(item, entry, _join(path, key), unions) for key, entry in _mapping(path, value).items()}
    if expected is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(path, value)
    # A bool is an int in Python: `seed=True` must not become seed 1.
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        # A folder called 2024 is a number to Python: it needs quotes inside those that the shell removes.
        text = f"""text, as "'{value}'\"""" if isinstance(value, int | float) else "text"
        raise _wrong_type(
            path, value, {int: "an integer", float: "a number", bool: "True or False"}.get(expected, text)
        )
    return value


def _finite(path: str, value: int | float) -> float:
    Allowed().check(path, value)
    return float(value)


def _build_dataclass(expected: type, value: Any, path: str, unions: Unions, default: Any) -> Any:
    fields = dict(_mapping(path, value))
    choice, changed = unions.get(expected), None
    if choice:
        kind = build(str, fields.get("kind", ""), _join(path, "kind"), unions)
        expected = choice.class_of(kind or None) if kind or default is None else type(default)
        changed = default if type(default) is expected else None
        if lacking := sorted(getattr(expected, "__abstractmethods__", ())):
            raise UserError(
                f"{path}.kind={fields.get('kind')!r} does not define {', '.join(lacking)}; add what is missing"
            )
    # `init=False` fields such as `kind` are set by the class itself.
    known = _names(expected)
    if "kind" not in known:
        fields.pop("kind", None)
    for key in fields:
        if key not in known:
            # At the top level, a setting may only lack its section: `learning_rate` for `optimizer.learning_rate`.
            deeper = _in_wrapped(expected, key, fields, path, unions) if path else paths_of(expected, key)
            elsewhere = [kind for kind in choice.kinds if key in _names(choice.class_of(kind))] if choice else []
            if deeper:
                hint = f"did you mean {' or '.join(map(repr, deeper))}?"
            elif 0 < len(elsewhere) <= _MOST_KINDS and ":" not in str(fields.get("kind")):
                kinds = f"{path}.kind={' or '.join(elsewhere)}"
                hint = f"{key!r} is a setting of {kinds}; add --config.{path}.kind={elsewhere[0]}"
            else:
                hint = _nearest(key, known, ["kind"] if choice else [])
            raise UserError(f"unknown configuration key {quoted(_join(path, key))}; {hint}")
    required = [
        field.name
        for field in dataclasses.fields(expected)
        if changed is None and field.init and field.default is field.default_factory is dataclasses.MISSING
    ]
    # Not `field.type`, which is text if a module has `from __future__ import annotations`.
    hints = typing.get_type_hints(expected)
    if missing := [name for name in required if name not in fields]:
        setting = _join(path, missing[0])
        remedy = f"add --config.{setting}.kind=KIND" if hints[missing[0]] in unions else f"set {setting}"
        raise UserError(f"{path or 'the configuration'} has no {missing[0]}; {remedy}")
    defaults = {field.name: default_of(field) for field in dataclasses.fields(expected)}
    values = {key: build(hints[key], entry, _join(path, key), unions, defaults[key]) for key, entry in fields.items()}
    return expected(**values) if changed is None else dataclasses.replace(changed, **values)


def default_of(field: dataclasses.Field) -> Any:
    """Return the default of a member of a union; None for other fields."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _in_wrapped(expected: Any, key: str, fields: Mapping[str, Any], path: str, unions: Unions) -> list[str]:
    """Return the paths of a setting in the parts that a part wraps, such as `objective.objective.threshold`."""
    hints = typing.get_type_hints(expected)
    wrapped = {
        name: unions[hints[name]].class_of(value["kind"])
        for name, value in fields.items()
        if name in hints and hints[name] in unions and isinstance(value, Mapping) and value.get("kind")
    }
    return [_join(_join(path, name), key) for name, kind in wrapped.items() if key in _names(kind)]


def paths_of(expected: type, name: str, path: str = "") -> list[str]:
    """Return the dotted paths of all settings called `name` in nested dataclasses.

    Args:
      expected: the outermost dataclass.
      name: last part of the path.
      path: dotted name of `expected` itself.
    """
    paths = []
    derived = {field.name for field in dataclasses.fields(expected) if field.metadata.get("is_derived")}
    for key, hint in typing.get_type_hints(expected).items():
        if key in derived:
            continue
        here = _join(path, key)
        if key == name:
            paths.append(here)
        if typing.get_origin(hint) is tuple:
            hint, here = typing.get_args(hint)[0], f"{here}.0"
        if dataclasses.is_dataclass(hint):
            paths += paths_of(hint, name, here)
    return paths


def override(mapping: dict, assignment: str, unions: Collection[str] = ()) -> list[str]:
    """Apply `a.b.0.c=value` to nested dicts and lists in place; missing dicts are created.

    A value that is not a Python literal is taken as text. If `kind` changes, settings for the old kind are removed.

    Args:
      mapping: nested settings by name.
      assignment: `a.b.0.c=value`.
      unions: names of settings that have a `kind`.

    Returns:
      Names of removed settings.

    Raises:
      UserError: `assignment` has no `=`, or a list index is out of range.
    """
    path, equals, text = assignment.partition("=")
    if not equals or not path:
        raise UserError(f"override {assignment!r} has no value; write --config.{path or 'KEY'}=VALUE")
    *parents, last = path.split(".")
    target: Any = mapping
    for key in parents:
        # `setdefault` creates sections that the file leaves out, so that any setting can be a flag.
        target = target[_index(target, key, path)] if isinstance(target, list) else target.setdefault(key, {})
        if not isinstance(target, (dict, list)):
            raise UserError(
                f"override {assignment!r}: {key!r} is a value and has no settings; see the names in config.json"
            )
    value, removed = _literal(text), []
    # The old kind's settings belong to another class, which would refuse them as unknown.
    if last == "kind" and parents[-1:] and parents[-1] in unions and cast(dict, target).get("kind", value) != value:
        removed = [name for name in target if name != "kind"]
        target.clear()
    place: Any = _index(target, last, path) if isinstance(target, list) else last
    target[place] = value
    return removed


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Return differing leaves of two nested structures as `a.b: old -> new`, with fingerprints cut to 12 digits."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(key for key in new if key not in old)]
        return [line for key in keys for line in differences(old.get(key), new.get(key), _join(path, key))]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [line for i, pair in enumerate(zip(old, new)) for line in differences(*pair, _join(path, str(i)))]
    return [] if old == new else [_SHA256.sub(r"\1", f"{path}: {old!r} -> {new!r}")]


def _join(path: str, key: str) -> str:
    # A key from a file may hold control characters, which must not reach the terminal.
    key = key if key.isprintable() else repr(key)
    return f"{path}.{key}" if path else key


def _names(expected: type) -> set[str]:
    """Return the names of a dataclass's settings."""
    return {field.name for field in dataclasses.fields(expected) if field.init}


def _nearest(key: str, known: set[str], others: list[str]) -> str:
    """Return a hint: the nearest known name, or all known names and `others`."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted({*known, *others}))}"


def _mapping(path: str, value: Any) -> Mapping:
    if not isinstance(value, Mapping):
        raise _wrong_type(path, value, "settings by name")
    for key in value:
        if not isinstance(key, str):
            raise UserError(f"{path or 'the configuration'} has the name {key!r}; names of settings are texts")
    return value


def _wrong_type(path: str, value: Any, expected: str) -> UserError:
    kind = "nothing" if isinstance(value, types.NoneType) else type(value).__name__
    return UserError(f"{path or 'the configuration'}={quoted(value)} is {kind}; it must be {expected}")


def _index(items: list, key: str, path: str) -> int:
    if not key.isdecimal() or int(key) >= len(items):
        raise UserError(
            f"override {path!r}: {key!r} is not an index of a list of {len(items)}; use 0 to {len(items) - 1}"
        )
    return int(key)


def _literal(text: str) -> Any:
    try:
        # Only literals: a flag must not run code.
        return ast.literal_eval(text)
    # Text without quotes, such as a path; deep nesting exhausts the parser.
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text
