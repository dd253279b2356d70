"""Quantization-aware training, as a function of the params.

The step rounds kernels and word tables to values that `models.int8` can store (symmetric, one scale per channel)
before the model runs. The gradient with respect to a rounded weight updates the float one. Evaluations and the export
use rounded weights, so an int8 export loses nothing more. Flax modules are unaware.

- Q8BERT (Zafrir et al., 2019, arXiv 1910.06188, section 3): 8 bits, with one scale per matrix. For activations, see
  `model.activation_bits`.
- Q-BERT (Shen et al., 2020, arXiv 1909.05840, section 3): different bits in each layer, with one scale per group of
  rows; a channel is the smallest group.
"""

import dataclasses
from typing import Any, cast

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.models import int8, layers
from bertjax.runtime.setting import check, setting


@dataclasses.dataclass(frozen=True)
class QuantizationConfig:
    """Quantization settings.

    Attributes:
      bits: bits for kernels and word tables, 2 to 8; 0 trains floats.
      layer_bits: bits for the kernels in each encoder layer, if they differ from `bits`; empty for `bits`.
    """

    bits: int = setting(0, least=2, most=8, hint="0 does not round")
    layer_bits: tuple[int, ...] = setting((), least=2, most=8, needs="bits")

    def __post_init__(self):
        check(self, "quantization")


def rounded(config: QuantizationConfig, params: dict) -> dict:
    """Round kernels and word tables; gradients pass through unchanged (straight-through)."""
    if not config.bits:
        return params
    flat = cast(dict[str, Any], flatten_dict(params, sep="/"))
    for path, leaf in flat.items():
        axis = None if path.startswith("projections/") else int8.summed_axis(path, leaf)
        if axis is not None:  # None: stays float; projections serve only a teacher's losses and are never exported
            bits = np.array(config.bits)
            if config.layer_bits and path.startswith("encoder/layers/"):
                bits = np.reshape(config.layer_bits, (-1, *[1] * (leaf.ndim - 1)))  # for each layer its own
            flat[path] = layers.rounded(leaf, bits, axis)
    return unflatten_dict(flat, sep="/")
