"""Sparsity and storage size after pruning."""

import numpy as np
from flax.traverse_util import flatten_dict

from bertjax.training.pruning import is_pruned


def describe_zeros(params: dict) -> str:
    """Describe the share of zeros in the encoder layers' kernels, and their dense and sparse size, in one line."""
    # Sparse: one bit per weight marks the non-zero ones, which are stored in float32.
    kernels = [np.asarray(leaf) for path, leaf in flatten_dict(params, sep="/").items() if is_pruned(path)]
    weights, left = sum(kernel.size for kernel in kernels), sum(map(np.count_nonzero, kernels))
    dense, sparse = 4 * weights, 4 * left + weights / 8
    return (
        f"{1 - left / weights:.1%} of {weights:,} weights in the kernels of the layers are 0: {dense / 1e6:.1f} MB as "
        f"stored, {sparse / 1e6:.1f} MB with a bit for each weight and the others as float32"
    )
