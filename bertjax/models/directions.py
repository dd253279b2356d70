"""The direction in which an encoder reads: which tokens of its example a token sees, as ranks of tokens.

A token sees the tokens of lower or equal rank (`Visibility.rank_BT`). The direction is a part of the architecture: an
export, and everything that opens it, has the same one.
"""

import sys
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bertjax.errors import Untrusted, UserError

DIRECTIONS = BIDIRECTIONAL, LEFT_TO_RIGHT, PREFIX = ("bidirectional", "left_to_right", "prefix")

# rank_BT of (columns_BT, segments_BT), int32 each.
Ranks = Callable[[jax.Array, jax.Array], jax.Array]


def _left_to_right(columns_BT: jax.Array, segments_BT: jax.Array) -> jax.Array:
    return columns_BT


def _prefix(columns_BT: jax.Array, segments_BT: jax.Array) -> jax.Array:
    return jnp.where(segments_BT == 0, 0, 1 + columns_BT)


_RANKS: dict[str, Ranks] = {LEFT_TO_RIGHT: _left_to_right, PREFIX: _prefix}
# The functions from elsewhere that this process may call. That a module is imported is not enough: a class is at least
# derived from one of bertjax, but any function of any library could be named.
_trusted: set[str] = set()


def ranks_of(direction: str) -> Ranks | None:
    """Return the function that ranks the tokens of rows; None if every token sees its whole example.

    Raises:
      UserError: see `check`.
    """
    if direction == BIDIRECTIONAL:
        return None
    return _RANKS[direction] if direction in _RANKS else _function(direction, trust_code=False)


def check(direction: str, trust_code: bool = False) -> None:
    """Check that a direction is known.

    Args:
      direction: one of `DIRECTIONS`, or `module:function`.
      trust_code: whether the function may be called, by everything in this process from now on.

    Raises:
      UserError: the direction is unknown, its module cannot be imported, or has no such function.
      Untrusted: `trust_code` is False, and was False for this direction so far.
    """
    if direction in DIRECTIONS:
        return
    if ":" not in direction:
        raise UserError(
            f"model.direction={direction!r} is unknown; choose one of {', '.join(DIRECTIONS)}, or name module:function"
        )
    _function(direction, trust_code)


def _function(direction: str, trust_code: bool) -> Ranks:
    # Only a function of the user needs the registry; opening a model does not.
    from bertjax import registry

    choice, (module_name, _, name) = f"model.direction={direction!r}", direction.partition(":")
    # These are imported, but not because somebody trusts an export.
    if module_name.partition(".")[0] in sys.stdlib_module_names | {"bertjax"}:
        raise UserError(f"{choice} names a module of Python or of bertjax; name a function of your own")
    if not trust_code and direction not in _trusted:
        raise Untrusted(
            f"{choice} names a function, which runs the code of its author; if you trust them, add --trust-code (in "
            f"Python call bertjax.models.directions.check({direction!r}, trust_code=True) first)"
        )
    function = vars(registry.module_of(choice, module_name, trust_code=True)).get(name)
    if not isinstance(function, types.FunctionType) or function.__module__ != module_name:
        raise UserError(f"{choice} cannot be used: {module_name} has no function {name!r}; correct the name")
    _trusted.add(direction)
    return function
