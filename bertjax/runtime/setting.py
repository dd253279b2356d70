"""Fields of settings that say which values they take, and the one check of them.

A range or a list of choices stands beside the default of a field, and every refusal of a value reads alike.
"""

import dataclasses
import re
import sys
from collections.abc import Collection, Mapping
from typing import Any

from bertjax.runtime.errors import UserError

# What a setting is, beside its value: metadata of its field, `setting("", metadata=PLACE)`. Who leaves settings out
# finds them by these (`marked`), so that no list elsewhere can forget one.
PLACE = {"is_place": True}  # names files of this machine: not in exports, and what they hold is compared by its content
FREE = {"is_free": True}  # where and how the work is done: a run may resume with another value
TRAINING_ONLY = {"is_training_only": True}  # changes what is learned, not what a held-out number asks
OF_INPUT = {"is_of_input": True}  # what a model reads of a record, not the label that it is scored by
OF_RECORDS = {"is_of_records": True}  # which records a file has: they have a fingerprint of their own
_NONE: Mapping[str, Any] = {}


@dataclasses.dataclass(frozen=True)
class Allowed:
    """The values that a setting takes, beside its default. A number is always finite.

    Attributes:
      least: smallest value; None for no bound.
      above: bound that the value must exceed.
      most: largest value.
      below: bound that the value must stay below.
      choices: all values; empty if any will do.
      filled: what to set if the value is empty, also by default; empty if it may be.
      is_pattern: whether it is a regular expression, to be searched for in names.
      hint: what follows the refusal, such as a usual value.
      needs: another setting of the same dataclass, without which this one has no effect.
      excludes: another setting of the same dataclass, which sets the same in another way.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    choices: Collection[str] = ()
    filled: str = ""
    is_pattern: bool = False
    hint: str = ""
    needs: str = ""
    excludes: str = ""

    def check(self, name: str, value: Any, of: str = "") -> None:
        """Raise UserError unless a value is allowed.

        Args:
          name: name of the setting, such as `optimizer.b1` or `--seeds`.
          value: its value.
          of: what has the setting, such as ` of the filter 'c4'`, if the name does not say it.
        """
        if self.filled and not value:
            raise UserError(f"{name}{of} is empty; {self.filled}")
        if self.is_pattern:
            _check_pattern(f"{name}{of}", value)
        if self.choices:
            if value not in self.choices:
                known = ", ".join(each or "''" for each in self.choices)
                raise UserError(f"{name}={value!r}{of} is unknown; choose one of {known}")
            return
        # Not a number fails the comparison. Python's integers are unbounded, floats are not.
        if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:
            raise UserError(f"{name}={value!s:.20}{of} is not a finite number; correct it")
        lower = (self.least is None or value >= self.least) and (self.above is None or value > self.above)
        upper = (self.most is None or value <= self.most) and (self.below is None or value < self.below)
        if not (lower and upper):
            raise UserError(f"{name}={value}{of} must {self._bounds}" + (f"; {self.hint}" if self.hint else ""))

    @property
    def _bounds(self) -> str:
        if self.least == 0 and self.most is self.below is None:
            return "not be negative"
        if self.least is not None and self.most is not None:
            return f"be between {self.least} and {self.most}"
        bounds = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        return "be " + " and ".join(f"{words} {bound}" for words, bound in bounds.items() if bound is not None)


_ANY = Allowed()


def setting(default: Any, *, kw_only: bool = False, metadata: Mapping[str, Any] = _NONE, **allowed: Any) -> Any:
    """Return a field of a dataclass, with a default and what `Allowed` takes."""
    return dataclasses.field(default=default, kw_only=kw_only, metadata={**metadata, "allowed": Allowed(**allowed)})


def check(settings: Any, path: str = "", of: str = "") -> None:
    """Raise UserError unless all fields of a dataclass have values that they allow, their defaults, or None.

    None is a value that something else decides, where a type has it. Of a list, every entry is checked. A field that
    has another default in a subclass keeps its bounds. Numbers of fields without bounds are finite.

    Args:
      settings: an instance whose fields are made by `setting`.
      path: where its fields are in the configuration, such as `optimizer`.
      of: see `Allowed.check`.
    """
    of_fields = _metadata(type(settings))
    for field in dataclasses.fields(settings):
        allowed, value = of_fields[field.name].get("allowed", _ANY), getattr(settings, field.name)
        if (value == field.default and not allowed.filled) or (value is None and not allowed.choices):
            continue
        name = f"{path}.{field.name}" if path else field.name
        several = dict(enumerate(value)) if isinstance(field.default, tuple) else value
        is_one = not isinstance(several, dict) or not several
        for entry, each in {name: value}.items() if is_one else several.items():
            allowed.check(name if is_one else f"{name}.{entry}", each, of)
        needed, excluded = (f"{path}.{other}" if path else other for other in (allowed.needs, allowed.excludes))
        if allowed.needs and not _is_set(settings, allowed.needs):
            remedy = "set both, or leave it out" + (f"; {allowed.hint}" if allowed.hint else "")
            raise UserError(f"{name}={value!r}{of} has no effect without {needed}; {remedy}")
        if allowed.excludes and _is_set(settings, allowed.excludes):
            both = f"{name}={value!r} and {excluded}={getattr(settings, allowed.excludes)!r}"
            raise UserError(f"{both} exclude each other; leave one out, or set {name}={field.default!r}")


def _is_set(settings: Any, name: str) -> bool:
    return getattr(settings, name) != type(settings).__dataclass_fields__[name].default


def _check_pattern(name: str, pattern: str) -> None:
    # `re.search` finds the empty pattern in every text.
    if not pattern:
        raise UserError(f"{name} is empty and would match everything; write .* if that is intended")
    try:
        re.compile(pattern)
    except re.error as error:
        raise UserError(f"{name}={pattern!r} is not a regular expression: {error}") from error


def marked(kind: type, *marks: Mapping[str, bool]) -> list[str]:
    """Return the names of a dataclass's settings that have one of the marks, such as `PLACE`, in order."""
    return [name for name, known in _metadata(kind).items() if any(mark.items() <= known.items() for mark in marks)]


def _metadata(kind: type) -> dict[str, dict[str, Any]]:
    """Return {setting: its metadata}; a subclass that sets another default keeps those of its bases."""
    found: dict[str, dict[str, Any]] = {}
    for base in reversed(kind.__mro__):
        for name, field in vars(base).get("__dataclass_fields__", {}).items():
            found[name] = found.get(name, {}) | dict(field.metadata)
    return found
