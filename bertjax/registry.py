"""Unions by `kind`: registered classes have a short name, classes from elsewhere are named `module:Class`."""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Union:
    """The classes that a setting such as `objective={"kind": "mlm", ...}` chooses from.

    Attributes:
      setting: name of the setting, for messages.
      base: class that all of them derive from. If it has a field `kind`, each class sets its own kind as the default.
      default: kind of the class that is built if none is set.
      kinds: {kind: `module:Class`} of the registered classes; a module is imported when its class is used.
      is_open: whether a kind may also be `module:Class`, a class from elsewhere.
    """

    setting: str
    base: type
    default: str
    kinds: Mapping[str, str]
    is_open: bool = True

    def class_of(self, kind: str | None = None) -> type:
        """Return the class of a kind.

        Args:
          kind: a registered kind, or `module:Class`; None for the default.

        Raises:
          UserError: the kind is unknown, cannot be imported, or is not such a class.
        """
        kind = kind or self.default
        choice = f"{self.setting}.kind={kind!r}"
        if kind not in self.kinds and not (self.is_open and ":" in kind):
            elsewhere = ", or name module:Class" if self.is_open else ""
            raise UserError(f"{choice} is unknown; choose one of {', '.join(self.kinds)}{elsewhere}")
        module_name, _, class_name = self.kinds.get(kind, kind).partition(":")
        try:
            registered = getattr(importlib.import_module(module_name), class_name)
        except (ImportError, AttributeError) as error:
            raise UserError(f"{choice} cannot be imported: {error}; is its folder on PYTHONPATH?") from error
        if not (isinstance(registered, type) and issubclass(registered, self.base)):
            base = f"{self.base.__module__}.{self.base.__qualname__}"
            raise UserError(f"{choice} is not a subclass of {self.base.__name__}; derive it from {base}")
        has_kind = any(field.name == "kind" for field in dataclasses.fields(self.base))
        if has_kind and (own := getattr(registered, "kind", None)) != kind:
            raise UserError(f"{choice} names a class whose own kind is {own!r}; make them the same")
        return registered

    def kind_of(self, value: Any) -> str:
        """Return the kind by which `class_of` finds the class of an instance."""
        name = f"{type(value).__module__}:{type(value).__qualname__}"
        return next((kind for kind, registered in self.kinds.items() if registered == name), name)
