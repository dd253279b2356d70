"""Hooks of users, named in `runtime.hooks`."""

from collections.abc import Sequence

from bertjax.config.registry import module_of
from bertjax.runtime.errors import UserError, reason
from bertjax.training.hooks.base import Hook


def user_hooks(kinds: Sequence[str]) -> list[Hook]:
    """Make the hooks that a configuration names as `module:Class`, in order.

    Raises:
      UserError: a hook cannot be imported or made.
    """
    return [_made(kind) for kind in kinds]


def _made(kind: str) -> Hook:
    choice, (module, _, name) = f"runtime.hooks has {kind!r}, which", kind.partition(":")
    found = vars(module_of(choice, module, trust_code=True)).get(name)
    if not (isinstance(found, type) and issubclass(found, Hook)):
        raise UserError(f"{choice} is not a class derived from bertjax.training.hooks.base.Hook; correct the name")
    moments = [name for name in vars(Hook) if name.startswith("on_")]
    if unknown := [name for name in dir(found) if name.startswith("on_") and name not in moments]:
        raise UserError(f"{choice} defines {unknown[0]}(), which is never called; the moments are {', '.join(moments)}")
    try:
        return found()
    except TypeError as error:
        raise UserError(f"{choice} cannot be made without arguments ({reason(error)}); give them defaults") from error
