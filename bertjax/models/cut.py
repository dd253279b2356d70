"""Fewer layers, heads and feed-forward neurons in a trained encoder, and zeros in place of heads that were cut.

Layers are stacked on one axis, so every layer keeps as many heads and neurons as any other. `heads` and `neurons` also
take all of them in another order, which leaves the function of the encoder as it is (Hou et al., 2020, DynaBERT, arXiv
2004.04037, section 2.1): the columns that make a head or a neuron and the rows that read it are permuted alike.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from bertjax.models import stack
from bertjax.models.config import EncoderConfig

# {path in a layer: axis of one layer's array}; every head has D / H places on it.
_HEAD_COLUMNS = {
    "attention/query/kernel": 1,
    "attention/query/bias": 0,
    "attention/key/kernel": 1,
    "attention/key/bias": 0,
    "attention/value/kernel": 1,
    "attention/value/bias": 0,
    "attention/output/kernel": 0,
    "attention/relative/distance/kernel": 1,
}
# The same with one place for each head.
_HEAD_ROWS = {
    "attention/relative/content_bias": 0,
    "attention/relative/distance_bias": 0,
    "attention/relative/segment_bias": 0,
    "attention/relative/segment": 1,
}
_NEURONS = {
    "intermediate/kernel": 1,
    "intermediate/bias": 0,
    "gate/kernel": 1,
    "gate/bias": 0,
    "output/kernel": 0,
}


def most_important(importance: np.ndarray, config: EncoderConfig, part: str, count: int) -> np.ndarray:
    """Return the most important heads or neurons of each layer, the first one first; int64 [R, count].

    Args:
      importance: float [L, H] or [L, F]. Layers that share their parameters also share the sum of their importance.
      part: first name of the parameters, `attention` or `intermediate`; R is its number of rows, see `stack.rows`.
      count: number of heads or neurons, at most all. Equally important ones keep their order.
    """
    of_rows = importance.reshape(stack.rows(config, part), -1, importance.shape[1]).sum(axis=1)
    return np.argsort(-of_rows, axis=1, kind="stable")[:, :count]


def layers(params: dict, config: EncoderConfig, kept: Sequence[int]) -> tuple[dict, EncoderConfig]:
    """Return an encoder of some of the layers, in the order of `kept`; no layer may share parameters."""
    stacked = jax.tree.map(lambda leaf: leaf[list(kept)], params["layers"])
    return params | {"layers": stacked}, dataclasses.replace(config, layers=len(kept))


def mixes(heads: dict, kept: Sequence[int]) -> dict:
    """Return heads whose mixes of layers (`bertjax.models.mixing`) have the weights of the embeddings and of `kept`."""
    places = [0, *(layer + 1 for layer in kept)]

    def changed(path: tuple, leaf: np.ndarray) -> np.ndarray:
        return leaf[places] if [key.key for key in path[-2:]] == ["mix", "weights"] else leaf

    return jax.tree_util.tree_map_with_path(changed, heads)


def heads(params: dict, config: EncoderConfig, kept: np.ndarray) -> tuple[dict, EncoderConfig]:
    """Return an encoder with some of its heads, or with all in another order; none may be fixed.

    Args:
      params: of the encoder.
      config: its architecture.
      kept: int [R, H'], the heads of each row of parameters.
    """
    channels = config.head_channels
    columns = (kept[..., None] * channels + np.arange(channels)).reshape(len(kept), -1)
    params = _changed(params, _HEAD_COLUMNS, lambda leaf, axis: _take(leaf, columns, axis))
    params = _changed(params, _HEAD_ROWS, lambda leaf, axis: _take(leaf, kept, axis))
    return params, _with_heads(config, kept.shape[1])


def neurons(params: dict, config: EncoderConfig, kept: np.ndarray) -> tuple[dict, EncoderConfig]:
    """Return an encoder with some of its feed-forward neurons, or with all in another order.

    Args:
      params: of the encoder.
      config: its architecture.
      kept: int [R, F'], the neurons of each row of parameters.
    """
    params = _changed(params, _NEURONS, lambda leaf, axis: _take(leaf, kept, axis))
    return params, dataclasses.replace(config, feedforward=kept.shape[1])


def with_zero_heads(params: dict, config: EncoderConfig) -> tuple[dict, EncoderConfig]:
    """Return the same function with as many heads as fill D or the inner width; the new heads are zeros.

    Raises:
      ValueError: heads of this width cannot fill D, or there are more than fill it.
    """
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
    return dataclasses.replace(config, heads=count, head_width=0 if count * width == config.layer_width else width)


def _changed(params: dict, axes: Mapping[str, int], change: Callable[[np.ndarray, int], np.ndarray]) -> dict:
    """Return an encoder whose leaves [R, ...] at these paths are changed along an axis of one layer."""

    def changed(path: tuple, leaf: np.ndarray) -> np.ndarray:
        name = "/".join(key.key for key in path)
        return change(np.asarray(leaf), axes[name]) if name in axes else leaf

    return params | {"layers": jax.tree_util.tree_map_with_path(changed, params["layers"])}


def _take(leaf: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
    return np.stack([row.take(index, axis) for row, index in zip(leaf, indices, strict=True)])


def _with_zeros(leaf: np.ndarray, count: int, axis: int) -> np.ndarray:
    widths = [(0, count if place == axis + 1 else 0) for place in range(leaf.ndim)]
    return np.pad(leaf, widths)
