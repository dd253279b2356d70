"""Muon for the kernels of layers, Adam for everything else."""

import jax
import optax
from optax import contrib

from bertjax.training.optim.by_path import stateless
from bertjax.training.param_paths import map_with_path, matches

# Not pruning scores, of which only the order matters. Embeddings and heads are matrices too, but their rows are updated
# by different tokens: Muon's authors leave them to Adam.
_IS_LAYER_KERNEL = matches(r"^(?!scores/).*(^|/)encoder/layers/.*kernel$")
# Jordan (2024) and Liu et al. (2025).
MOMENTUM = 0.95
# Root mean square of an update, as Adam's usually is (Liu et al., 2025, section 2.2), so that both take one rate.
RMS = 0.2


def scale_by_muon(adam: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return Muon (Jordan, 2024, kellerjordan.github.io/posts/muon) as a transformation without a learning rate.

    Each layer's kernel [in, out] gets the momentum with its singular values set to about 1, times
    0.2 sqrt(max(in, out)) (Liu et al., 2025, arXiv 2502.16982, equation 4). Kernels are [L, in, out].

    Args:
      adam: optimizer of all other parameters.
    """

    def axes(kernels: dict) -> dict:
        # Muon sees kernels only; axes that are neither, here the layers, are batch axes.
        return jax.tree.map(lambda _: contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2), kernels)

    muon = contrib.scale_by_muon(beta=MOMENTUM, weight_dimension_numbers=axes)
    scaled = stateless(lambda params: None, lambda _, update, __: update * RMS * max(update.shape[1:]) ** 0.5)
    return optax.partition({True: optax.chain(muon, scaled), False: adam}, _is_layer_kernel)


def _is_layer_kernel(params: dict) -> dict:
    return map_with_path(lambda path, leaf: _IS_LAYER_KERNEL(path) and leaf.ndim == 3, params)
