"""Reading direction of an encoder: which tokens of its example a token sees, expressed as token ranks.

A token sees the tokens of equal or lower rank (`Visibility.rank_BT`). The direction is part of the architecture, so an
export keeps it, and so does every program that loads the export.
"""

import sys
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bertjax.runtime.errors import Untrusted, UserError

DIRECTIONS = BIDIRECTIONAL, LEFT_TO_RIGHT, PREFIX = ("bidirectional", "left_to_right", "prefix")

# Maps (columns_BT, segments_BT), int32 each, to rank_BT.
Ranks = Callable[[jax.Array, jax.Array], jax.Array]


_RANKS: dict[str, Ranks] = {
    LEFT_TO_RIGHT: lambda columns_BT, segments_BT: columns_BT,
    # Segment 0 has one rank, so it is bidirectional; later tokens have increasing ranks and see all of it.
    PREFIX: lambda columns_BT, segments_BT: jnp.where(segments_BT == 0, 0, 1 + columns_BT),
}
# User functions that this process may call. Being imported is not enough: a class must at least derive from one of
# bertjax, but a direction could name any function of any library.
_trusted: set[str] = set()


def ranks_of(direction: str) -> Ranks:
    """Return the function that ranks tokens in an encoder that is not bidirectional.

    Raises:
      UserError: see `check`.
    """
    return _RANKS[direction] if direction in _RANKS else _function(direction, trust_code=False)


def check(direction: str, trust_code: bool = False) -> None:
    """Check that a direction is valid.

    Args:
      direction: one of `DIRECTIONS`, or `module:function`.
      trust_code: allow calling the function, from now on and anywhere in this process.

    Raises:
      UserError: the direction is unknown, its module cannot be imported, or has no such function.
      Untrusted: `trust_code` is False and this direction has not been trusted before.
    """
    if direction in DIRECTIONS:
        return
    if ":" not in direction:
        raise UserError(
            f"model.direction={direction!r} is unknown; choose one of {', '.join(DIRECTIONS)}, or name module:function"
        )
    _function(direction, trust_code)


def _function(direction: str, trust_code: bool) -> Ranks:
    # Imported on use: only user functions need the registry; opening a model does not.
    from bertjax.config import registry

    choice, (module_name, _, name) = f"model.direction={direction!r}", direction.partition(":")
    # These modules are imported anyway, but not because somebody trusted an export.
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
