"""Int8 weights with float32 scales, which store an export's kernels and word embeddings in a quarter of the bytes.

Symmetric and per channel: w = q * scale with -127 <= q <= 127 and scale = max|w| / 127 over the channel. A channel is a
column in a kernel [..., in, out] and a row in a word table [V, E]. The error per weight is at most scale / 2, which is
max|w| / 254. A channel trained in fewer than 8 bits gets scale max|w| / 126, 124 or 120 if that is exact. Biases, layer
norms, position and segment tables stay float32. In a file, `a/b.scale` has the scales of array `a/b`.
"""

from collections.abc import Mapping

import numpy as np

LEVELS = 127
# b-bit weights are multiples of max|w| / n with n = 2^(b - 1) - 1, so a level count that n divides stores them exactly.
# Largest multiples up to 127: 126 for n = 3, 7 and 63 (3, 4 and 7 bits), 124 for 31 (6 bits), 120 for 15 (5 bits). With
# 2 bits, n = 1 divides 127.
_LEVELS_OF_FEWER_BITS = (126, 124, 120)
_EXACT = 1e-3  # tolerance in units of q; float32 rounding of a weight is about 1e-5
_SCALE = ".scale"


def quantize(flat: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return {path: array} with kernels and word tables as int8, and their scales added."""
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
    """Return a scale per channel: max|w| / 127, or with fewer levels if only they are exact."""
    largest = np.abs(leaf).max(axis=axis, keepdims=True, initial=0.0)

    def is_exact(scale: np.ndarray) -> np.ndarray:
        steps = _steps(leaf, scale)
        return np.abs(steps - np.round(steps)).max(axis=axis, keepdims=True, initial=0.0) < _EXACT

    scale = (largest / LEVELS).astype(np.float32)
    for levels in _LEVELS_OF_FEWER_BITS:
        other = (largest / levels).astype(np.float32)
        # Only if 127 levels lose something: otherwise the finer scale is kept.
        scale = np.where(is_exact(other) & ~is_exact(scale), other, scale)
    return scale


def _steps(leaf: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return leaf / np.where(scale > 0, scale, 1)  # a channel of zeros has scale 0


def dequantize(stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return {path: array} with int8 arrays multiplied by their scales; float32 arrays stay as they are.

    Raises:
      ValueError: an int8 array has no scales, or they do not fit it.
    """
    flat = {}
    for path, leaf in stored.items():
        # A norm has a param `scale` too; only the scale of an int8 array is consumed here.
        if path.endswith(_SCALE) and getattr(stored.get(path.removesuffix(_SCALE)), "dtype", None) == np.int8:
            continue
        if leaf.dtype != np.int8:
            flat[path] = leaf
            continue
        scale, axis = stored.get(path + _SCALE), summed_axis(path, leaf)
        fitting = None if axis is None else leaf.sum(axis=axis, keepdims=True).shape
        if scale is None or scale.dtype != np.float32 or scale.shape != fitting:
            raise ValueError(f"the int8 array {path} has no scales that fit it")
        if not np.all(np.isfinite(scale) & (scale >= 0)):
            raise ValueError(f"the scales of {path} are negative or not finite")
        flat[path] = leaf * scale
    return flat


def summed_axis(path: str, leaf: np.ndarray) -> int | None:
    """Return the axis that runs within a channel; None if the array stays float32."""
    name = path.rpartition("/")[2]
    if leaf.ndim < 2 or not (name == "kernel" or name.startswith("word")):
        return None
    return -2 if name == "kernel" else -1
