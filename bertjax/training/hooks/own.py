"""Hooks of users, named in `runtime.hooks`."""

from collections.abc import Sequence

from bertjax.config.registry import Union
from bertjax.training.hooks.base import Hook

HOOKS = Union("runtime.hooks", Hook, "", {})


def own_hooks(kinds: Sequence[str]) -> list[Hook]:
    """Make the hooks of a configuration, in order.

    Raises:
      UserError: a hook is unknown or cannot be imported.
    """
    return [HOOKS.class_of(kind, trust_code=True)() for kind in kinds]
