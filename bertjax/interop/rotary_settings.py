"""Rotary positions in a `config.json` of transformers 5."""

from collections.abc import Mapping
from typing import Any

from bertjax.runtime.errors import UserError, quoted

_UNSCALED = {"rope_type": "default", "type": "default", "factor": 1.0, "partial_rotary_factor": 1.0}
# Only scaled types read it.
_UNREAD = "original_max_position_embeddings"


def table_of(parameters: Any, name: str = "rope_parameters") -> Mapping[str, Any]:
    """Return `rope_parameters`, or its entry for a kind of layer, as a mapping; null is an empty one.

    Args:
      parameters: the value.
      name: its key, for the message; `rope_scaling` in transformers 4.

    Raises:
      UserError: it is neither.
    """
    if not isinstance(parameters, Mapping | None):
        raise UserError(
            f"config.json has {name} with {quoted(parameters)} in place of a table; download the file again"
        )
    return parameters or {}


def base_of(parameters: Any, key: str, name: str = "rope_parameters") -> dict[str, float]:
    """Return {key: base} of `rope_parameters`, or of its entry for a kind of layer; empty if it has no base.

    Args:
      parameters, name: see `table_of`.
      key: name of the base in the result.

    Raises:
      UserError: rotations are scaled, or see `table_of`.
    """
    parameters = table_of(parameters, name)
    neutral = {name: parameters.get(name) for name in ("rope_theta", _UNREAD)} | _UNSCALED
    if scaled := {name: value for name, value in parameters.items() if value not in (None, neutral.get(name))}:
        raise UserError(f"config.json has {name} with {quoted(scaled)}; bertjax's rotary positions are not scaled")
    return {key: parameters["rope_theta"]} if "rope_theta" in parameters else {}
