"""Weights as int8 with float32 scales: how an export stores kernels and word embeddings in a quarter of the bytes.

Symmetric and per channel: w = q * scale with q from -127 to 127 and scale = max|w| / 127 over the channel. A channel of
a kernel [..., in, out] is a column of one layer; a channel of a word table [V, E] is a row. The error of a weight is at
most half its scale, max|w| / 254 of its channel. A channel that was trained in fewer than 8 bits has a scale of
max|w| / 126, 124 or 120 if this stores it without error. Biases, layer norms, and tables of positions and segments stay
float32. In a file, the scales of the array `a/b` are `a/b.scale`.
"""

from collections.abc import Mapping

import numpy as np

LEVELS = 127
# Weights of b bits are multiples of max|w| / n for n = 2^(b - 1) - 1. These are the largest multiples of n up to 127:
# of 3, 7 and 63 (3, 4 and 7 bits), of 31 (6 bits) and of 15 (5 bits). With 2 bits, n = 1 divides 127.
_LEVELS_OF_FEWER_BITS = (126, 124, 120)
_EXACT = 1e-3  # in steps of q; float32 rounds a weight to about 1e-5 of them
_SCALE = ".scale"


def quantize(flat: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return {path: array} with int8 in place of float32 kernels and word tables, and their scales."""
    stored = {}
    for path, leaf in flat.items():
        axis = summed_axis(path, leaf)
        if axis is None:
            stored[path] = leaf
            continue
        scale = _scale(leaf, axis)
        stored[path] = np.round(_steps(leaf, scale)).astype(np.int8)
        stored[path + _SCALE] = scale
    return stored


def _scale(leaf: np.ndarray, axis: int) -> np.ndarray:
    """Return the scales of the channels: max|w| / 127, or one of fewer levels that leaves no error where 127 do."""
    largest = np.abs(leaf).max(axis=axis, keepdims=True, initial=0.0)

    def is_exact(scale: np.ndarray) -> np.ndarray:
        steps = _steps(leaf, scale)
        return np.abs(steps - np.round(steps)).max(axis=axis, keepdims=True, initial=0.0) < _EXACT

    scale = (largest / LEVELS).astype(np.float32)
    for levels in _LEVELS_OF_FEWER_BITS:
        other = (largest / levels).astype(np.float32)
        scale = np.where(is_exact(other) & ~is_exact(scale), other, scale)
    return scale


def _steps(leaf: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return leaf / np.where(scale > 0, scale, 1)


def dequantize(stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return {path: array} with float32 in place of int8 and scales; float32 arrays stay as they are.

    Raises:
      ValueError: an int8 array has no scales, or they do not fit it.
    """
    flat = {}
    for path, leaf in stored.items():
        if path.endswith(_SCALE) and getattr(stored.get(path.removesuffix(_SCALE)), "dtype", None) == np.int8:
            continue
        if leaf.dtype != np.int8:
            flat[path] = leaf
            continue
        scale, axis = stored.get(path + _SCALE), summed_axis(path, leaf)
        if scale is None or axis is None or scale.dtype != np.float32 or not _fits(scale.shape, leaf.shape, axis):
            raise ValueError(f"the int8 array {path} has no scales that fit it")
        if not np.all(np.isfinite(scale) & (scale >= 0)):
            raise ValueError(f"the scales of {path} are negative or not finite")
        flat[path] = leaf * scale
    return flat


def summed_axis(path: str, leaf: np.ndarray) -> int | None:
    """Return the axis along which the values of a channel are; None for an array that stays float32."""
    name = path.rpartition("/")[2]
    if leaf.ndim < 2 or not (name == "kernel" or name.startswith("word")):
        return None
    return -2 if name == "kernel" else -1


def _fits(scale: tuple[int, ...], leaf: tuple[int, ...], axis: int) -> bool:
    expected = list(leaf)
    expected[axis] = 1
    return list(scale) == expected
