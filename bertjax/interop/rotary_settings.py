"""Rotary positions in a `config.json` of transformers 5."""

from collections.abc import Mapping
from typing import Any

from bertjax.runtime.errors import UserError, quoted

_UNSCALED = {"rope_type": "default", "type": "default", "factor": 1.0, "partial_rotary_factor": 1.0}


def base_of(parameters: Mapping[str, Any] | None, key: str) -> dict[str, float]:
    """Return {key: base} of `rope_parameters`, or of its entry for a kind of layer; empty if it has no base.

    Raises:
      UserError: rotations are scaled.
    """
    parameters = parameters or {}
    neutral = {"rope_theta": parameters.get("rope_theta")} | _UNSCALED
    if scaled := {name: value for name, value in parameters.items() if value not in (None, neutral.get(name))}:
        raise UserError(
            f"config.json has rope_parameters with {quoted(scaled)}; bertjax's rotary positions are not scaled"
        )
    return {key: parameters["rope_theta"]} if "rope_theta" in parameters else {}
