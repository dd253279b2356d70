"""What an encoder captures of its layers, see `bertjax.models.taps`: which layers, and how their values are stored."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.models.taps import CAPTURED, LAST, names_of


def layers_of(encoder: nn.Module, read_BQ: jax.Array | None) -> tuple[int, ...] | None:
    """Return the layers to capture, counted from 0; None for all.

    Raises:
      ValueError: the names have different layers, or the encoder does not compute these layers for all tokens.
    """
    if not names_of(encoder):
        return None
    config = encoder.config
    first, *others = encoder.variables.get(CAPTURED, {}).values() or (None,)
    if first is None or not isinstance(first, tuple):
        return None
    if any(other != first for other in others):
        raise ValueError("captured names different layers for different values; pass dict.fromkeys(names, layers)")
    if list(first) != sorted(set(first) & set(range(config.layers))):
        raise ValueError(f"captured has the layers {first}; pass increasing numbers below {config.layers}")
    if read_BQ is not None:
        raise ValueError("read_BK leaves values of the last layer out, and captured layers are chosen; drop one")
    if len(first) == config.layers:
        return None
    if config.sharing_groups > 1:
        raise ValueError("captured layers cannot be chosen if groups of layers share parameters; capture all of them")
    return first


def runs_of_layers(count: int, captured: Sequence[int] | None) -> list[tuple[slice, bool]]:
    """Split `count` layers into consecutive runs (slice, is captured); None captures all."""
    if captured is None:
        return [(slice(0, count), True)]
    # Only captured runs of layers stack their values in the scan: memory for the others is never allocated.
    edges = [0, *(layer for layer in range(1, count) if (layer in captured) != (layer - 1 in captured)), count]
    return [(slice(start, stop), start in captured) for start, stop in zip(edges, edges[1:])]


def layer_values(state: Mapping) -> dict[str, jax.Array]:
    """Return one layer's captured values {name: array}, including its attention's."""
    captured = dict(state.get(CAPTURED, {}))
    return dict(captured.pop("attention", {})) | captured


def store(
    encoder: nn.Module, embedded: jax.Array, values: Sequence[Mapping[str, jax.Array]], last: Mapping | None
) -> None:
    """Store the captured values of all layers.

    Args:
      embedded: the embeddings, as the first layer reads them.
      values: {name: [layers, ...]} for consecutive runs of layers.
      last: {name: array} from the last layer, if it computed only some positions.
    """
    stacked = {name: jnp.concatenate([part[name] for part in values]) for name in values[0]}
    if "hidden" in stacked:
        stacked["hidden"] = jnp.concatenate([embedded[None], stacked["hidden"]])
    for name, value in (stacked if last is None else stacked | {LAST: dict(last)}).items():
        encoder.put_variable(CAPTURED, name, value)
