"""Prune layers, heads and feed-forward neurons of a trained encoder; pad pruned heads with zeros.

Layers are stacked on one axis, so all layers keep the same number of heads and neurons. `heads` and `neurons` also
accept a permutation of all of them, which does not change the encoder's function (Hou et al., 2020, DynaBERT, arXiv
2004.04037, section 2.1): the columns that produce a head or neuron and the rows that consume it are permuted alike.

What is cut first may follow `importance.json`, which `bertjax analyze` writes:

    {"format_version": 1, "model": "sst2", "material": "glue:SST-2", "examples": 500, "objective": "Classification",
     "heads": [[0.012, ...], ...], "neurons": [[0.0004, ...], ...]}

`heads` has one row per layer, from the first layer on, with a number for each head; `neurons` has a number for each
feed-forward neuron. A number is the absolute derivative of the loss with respect to a factor on the output of the head
or neuron, averaged over examples, in nats (Michel et al., 2019, section 4.1, arXiv 1905.10650). Within a layer, numbers
are comparable as they are. Between layers, first divide them by their layer's Euclidean norm (`normalized`).
"""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bertjax.models import stack
from bertjax.models.config import EncoderConfig
from bertjax.runtime import untrusted
from bertjax.runtime.errors import UserError, check_format, reason

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


FILE = "importance.json"
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True, eq=False)
class Importance:
    """Importance of heads and neurons.

    Attributes:
      heads: float64 [L, H].
      neurons: float64 [L, F].
      model: model name.
      material: name of the texts.
      examples: number of examples.
      objective: class name; its loss was differentiated.
    """

    heads: np.ndarray
    neurons: np.ndarray
    model: str = ""
    material: str = ""
    examples: int = 0
    objective: str = ""

    def to_json(self) -> bytes:
        """Return the file content."""
        about = {name: getattr(self, name) for name in ("model", "material", "examples", "objective")}
        arrays = {"heads": self.heads, "neurons": self.neurons}
        numbers = {name: [[float(f"{x:.6g}") for x in row] for row in array] for name, array in arrays.items()}
        return (json.dumps({"format_version": FORMAT_VERSION} | about | numbers, ensure_ascii=False) + "\n").encode()


def read_importance(path: str | os.PathLike, encoder: EncoderConfig) -> Importance:
    """Read a file and check that it fits an encoder.

    Raises:
      UserError: the file cannot be read, is not an `importance.json`, or was made for another shape.
    """
    try:
        content = untrusted.read_json(path)
        version = content["format_version"]
        arrays: dict[str, Any] = {name: np.array(content[name], np.float64) for name in ("heads", "neurons")}
        about: dict[str, Any] = {"model": str(content["model"]), "material": str(content["material"])}
        about |= {"examples": int(content["examples"]), "objective": str(content["objective"])}
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(
            f"{path} is not an importance.json ({type(error).__name__}: {reason(error)}); make one with "
            "python -m bertjax analyze MODEL --parts=importance"
        ) from error
    check_format(str(path), version, FORMAT_VERSION, "make it again")
    for name, width in (("heads", encoder.heads), ("neurons", encoder.feedforward)):
        if arrays[name].shape != (encoder.layers, width):
            raise UserError(
                f"{path} has {name} of the shape {list(arrays[name].shape)}, and the model has "
                f"{[encoder.layers, width]}; make it from this model with python -m bertjax analyze"
            )
        if not np.all(np.isfinite(arrays[name]) & (arrays[name] >= 0)):
            raise UserError(f"{path} has {name} that are negative or not finite; make it again")
    return Importance(**arrays, **about)


def normalized(importance: np.ndarray) -> np.ndarray:
    """Return importance [L, ...] divided by each layer's Euclidean norm; layers of zeros stay zero.

    Layers differ in scale (Molchanov et al., 2017, section 2.2, arXiv 1611.06440).
    """
    norms = np.linalg.norm(importance, axis=1, keepdims=True)
    return importance / np.where(norms > 0, norms, 1.0)
