"""Prune layers, heads and feed-forward neurons of a trained encoder; pad pruned heads with zeros.

Layers are stacked on one axis, so all layers keep the same number of heads and neurons. `heads` and `neurons` also
accept a permutation of all of them, which does not change the encoder's function (Hou et al., 2020, DynaBERT, arXiv
2004.04037, section 2.1): the columns that produce a head or neuron and the rows that consume it are permuted alike.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from bertjax.models import stack
from bertjax.models.config import EncoderConfig

# {path in a layer: axis of one layer's array that holds the heads, each with D / H entries}.
_HEAD_COLUMNS = {
    **{f"attention/{name}/kernel": 1 for name in ("query", "key", "value", "relative/distance")},
    **{f"attention/{name}/bias": 0 for name in ("query", "key", "value")},
    "attention/output/kernel": 0,
}
# The same for axes with one entry per head.
_HEAD_ROWS = {
    **{f"attention/relative/{name}_bias": 0 for name in ("content", "distance", "segment")},
    "attention/relative/segment": 1,
}
_NEURONS = {"intermediate/kernel": 1, "intermediate/bias": 0, "gate/kernel": 1, "gate/bias": 0, "output/kernel": 0}


def most_important(importance: np.ndarray, config: EncoderConfig, part: str, count: int) -> np.ndarray:
    """Return each layer's most important heads or neurons, most important first; int64 [R, count].

    Args:
      importance: float [L, H] or [L, F]. Layers that share parameters are ranked by their summed importance.
      part: first name of the parameters, `attention` or `intermediate`; R is its number of rows, see `stack.rows`.
      count: number of heads or neurons to return. Ties keep their order.
    """
    # Pruning a shared row prunes it in every layer that uses it, so its importance is the sum over these layers.
    of_rows = importance.reshape(stack.rows(config, part), -1, importance.shape[1]).sum(axis=1)
    return np.argsort(-of_rows, axis=1, kind="stable")[:, :count]


def layers(params: dict, config: EncoderConfig, kept: Sequence[int]) -> tuple[dict, EncoderConfig]:
    """Return an encoder with only the layers `kept`, in this order; no layer may share parameters."""
    stacked = jax.tree.map(lambda leaf: leaf[list(kept)], params["layers"])
    return params | {"layers": stacked}, dataclasses.replace(config, layers=len(kept))


def moved(config: EncoderConfig, sources: Sequence[int]) -> str:
    """Return how the first layer that cannot be moved to its new place differs from it; empty if all can.

    Some properties of a layer, such as a window, depend on its place and not on its parameters (`Block.kind_at`). A
    layer that was trained with one of them computes something else with another.

    Args:
      config: architecture, before or after.
      sources: the old number of the layer in each new place.
    """
    kind_at = config.block.kind_at
    differing = ((place, layer) for place, layer in enumerate(sources) if kind_at(place) != kind_at(layer))
    if (pair := next(differing, None)) is None:
        return ""
    place, layer = pair
    return f"layer {layer} is {kind_at(layer)}, and place {place} is for one that is {kind_at(place)}"


def mixes(heads: dict, kept: Sequence[int]) -> dict:
    """Return heads whose layer mixes (`bertjax.models.mixing`) keep the weights for the embeddings and `kept`."""
    places = [0, *(layer + 1 for layer in kept)]

    def changed(path: tuple, leaf: np.ndarray) -> np.ndarray:
        # Entry 0 of a mix weighs the embeddings, entry l + 1 layer l.
        return leaf[places] if [key.key for key in path[-2:]] == ["mix", "weights"] else leaf

    return jax.tree_util.tree_map_with_path(changed, heads)


def check_heads(config: EncoderConfig) -> None:
    """Raise ValueError if heads cannot be cut, added or reordered, because several read the same keys and values."""
    if shared := config.block.key_value_heads:
        raise ValueError(
            f"model.block.key_value_heads={shared} serve {config.heads} heads of queries together, which stay together"
        )
    if config.block.has_shared_heads:
        raise ValueError(f"model.block.kind={config.block.kind} has parameters of heads that all layers share")


def heads(params: dict, config: EncoderConfig, kept: np.ndarray) -> tuple[dict, EncoderConfig]:
    """Return an encoder with some of its heads, or with all of them reordered; none may be fixed.

    Args:
      params: encoder parameters.
      config: encoder architecture.
      kept: int [R, H'], heads to keep, per parameter row.

    Raises:
      ValueError: see `check_heads`.
    """
    check_heads(config)
    channels = config.head_channels
    columns = (kept[..., None] * channels + np.arange(channels)).reshape(len(kept), -1)
    params = _changed(params, _HEAD_COLUMNS, lambda leaf, axis: _take(leaf, columns, axis))
    params = _changed(params, _HEAD_ROWS, lambda leaf, axis: _take(leaf, kept, axis))
    return params, _with_heads(config, kept.shape[1])


def neurons(params: dict, config: EncoderConfig, kept: np.ndarray) -> tuple[dict, EncoderConfig]:
    """Return an encoder with some of its feed-forward neurons, or with all of them reordered.

    Args:
      params: encoder parameters.
      config: encoder architecture.
      kept: int [R, F'], neurons to keep, per parameter row.
    """
    params = _changed(params, _NEURONS, lambda leaf, axis: _take(leaf, kept, axis))
    return params, dataclasses.replace(config, feedforward=kept.shape[1])


def with_zero_heads(params: dict, config: EncoderConfig) -> tuple[dict, EncoderConfig]:
    """Return the same function with zero heads added until the heads fill D or the inner width.

    Raises:
      ValueError: heads of this width cannot fill D, there are more than fill it, or see `check_heads`.
    """
    check_heads(config)
    width = config.layer_width
    missing = width - config.context_width
    if missing < 0 or missing % config.head_channels:
        raise ValueError(f"{config.heads} heads of width {config.head_channels} cannot fill the width {width}")
    count = missing // config.head_channels
    params = _changed(params, _HEAD_COLUMNS, lambda leaf, axis: _with_zeros(leaf, missing, axis))
    params = _changed(params, _HEAD_ROWS, lambda leaf, axis: _with_zeros(leaf, count, axis))
    return params, _with_heads(config, config.heads + count)


def _with_heads(config: EncoderConfig, count: int) -> EncoderConfig:
    width = config.head_channels
    # Without pruned heads, head_width returns to its default, so the config equals the original one.
    return dataclasses.replace(config, heads=count, head_width=0 if count * width == config.layer_width else width)


def _changed(params: dict, axes: Mapping[str, int], change: Callable[[np.ndarray, int], np.ndarray]) -> dict:
    """Apply `change` to the leaves [R, ...] at these paths, along an axis given for one layer."""

    def changed(path: tuple, leaf: np.ndarray) -> np.ndarray:
        name = "/".join(key.key for key in path)
        return change(np.asarray(leaf), axes[name]) if name in axes else leaf

    return params | {"layers": jax.tree_util.tree_map_with_path(changed, params["layers"])}


def _take(leaf: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
    return np.stack([row.take(index, axis) for row, index in zip(leaf, indices, strict=True)])


def _with_zeros(leaf: np.ndarray, count: int, axis: int) -> np.ndarray:
    widths = [(0, count if place == axis + 1 else 0) for place in range(leaf.ndim)]
    return np.pad(leaf, widths)
