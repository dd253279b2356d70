"""Fields of settings that say which values they take, and the one check of them.

A range or a list of choices stands beside the default of a field, and every refusal of a value reads alike.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from bertjax.runtime.errors import UserError

_NONE: Mapping[str, Any] = {}


@dataclasses.dataclass(frozen=True)
class Allowed:
    """The values that a setting takes, beside its default. Not a number fails every bound.

    Attributes:
      least: smallest value; None for no bound.
      above: bound that the value must exceed.
      most: largest value.
      below: bound that the value must stay below.
      choices: all values; empty if any will do.
      hint: what follows the refusal, such as a usual value.
      needs: another setting of the same dataclass, without which this one has no effect.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    choices: Collection[str] = ()
    hint: str = ""
    needs: str = ""

    def check(self, name: str, value: Any, of: str = "") -> None:
        """Raise UserError unless a value is allowed.

        Args:
          name: name of the setting, such as `optimizer.b1` or `--seeds`.
          value: its value.
          of: what has the setting, such as ` of the filter 'c4'`, if the name does not say it.
        """
        if self.choices:
            if value not in self.choices:
                known = ", ".join(each or "''" for each in self.choices)
                raise UserError(f"{name}={value!r}{of} is unknown; choose one of {known}")
            return
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


def setting(default: Any, *, kw_only: bool = False, metadata: Mapping[str, Any] = _NONE, **allowed: Any) -> Any:
    """Return a field of a dataclass, with a default and what `Allowed` takes."""
    return dataclasses.field(default=default, kw_only=kw_only, metadata={**metadata, "allowed": Allowed(**allowed)})


def check(settings: Any, path: str = "", of: str = "") -> None:
    """Raise UserError unless all fields of a dataclass have values that they allow, their defaults, or None.

    None is a value that something else decides, where a type has it. Of a list, every entry is checked. A field that
    has another default in a subclass keeps its bounds.

    Args:
      settings: an instance whose fields are made by `setting`.
      path: where its fields are in the configuration, such as `optimizer`.
      of: see `Allowed.check`.
    """
    kinds = [vars(kind).get("__dataclass_fields__", {}).values() for kind in reversed(type(settings).__mro__)]
    bounds = {each.name: each.metadata["allowed"] for fields in kinds for each in fields if "allowed" in each.metadata}
    for field in dataclasses.fields(settings):
        allowed, value = bounds.get(field.name), getattr(settings, field.name)
        if allowed is None or value == field.default or (value is None and not allowed.choices):
            continue
        name = f"{path}.{field.name}" if path else field.name
        is_list = isinstance(field.default, tuple)
        entries = {f"{name}.{index}": each for index, each in enumerate(value)} if is_list else {name: value}
        for entry, each in entries.items():
            allowed.check(entry, each, of)
        if allowed.needs and not getattr(settings, allowed.needs):
            needed = f"{path}.{allowed.needs}" if path else allowed.needs
            remedy = "set both, or leave it out" + (f"; {allowed.hint}" if allowed.hint else "")
            raise UserError(f"{name}={value!r}{of} has no effect without {needed}; {remedy}")
