"""Unstructured pruning and quantization during training, as functions of the params. Flax modules are unaware.

**Pruning.** The step sets the kernel weights with the lowest scores to 0 before the model runs. The share of remaining
weights falls from 1 to its final value on a cubic schedule (Zhu & Gupta, 2017, arXiv 1710.01878, section 3). There are
two scores:

- `magnitude`: the absolute value of the weight (Han et al., 2015, arXiv 1506.02626). There is nothing else to train.
- `movement`: learned with the weight (Sanh et al., 2020, arXiv 2005.07683, section 4). The scores S are separate
  leaves, `scores/<kernel path>`, shaped like the kernel W. The mask passes its gradient to S unchanged (the straight-
  through estimator, Bengio et al., 2013, arXiv 1308.3432), so dS = dL/dW' * W for the pruned kernel W'. A weight's
  score rises as training moves it away from 0. Scores start at 0, and only their order matters, so a multiplier on
  their learning rate has no effect.

Weights compete within the kernel of one layer, as in the authors' published code. A pruned weight has no gradient, but
its score has one, so it can return.

**Quantization.** The step rounds kernels and word tables to values that `models.int8` can store (symmetric, one scale
per channel) before the model runs. The gradient with respect to a rounded weight updates the float one. Evaluations and
the export use rounded weights, so an int8 export loses nothing more.

- Q8BERT (Zafrir et al., 2019, arXiv 1910.06188, section 3): 8 bits, with one scale per matrix. For activations, see
  `model.activation_bits`.
- Q-BERT (Shen et al., 2020, arXiv 1909.05840, section 3): different bits in each layer, with one scale per group of
  rows; a channel is the smallest group.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bertjax.models import int8, layers
from bertjax.runtime.errors import UserError
from bertjax.runtime.setting import check, setting
from bertjax.training.param_paths import matches_any

ROOT = "scores"
KINDS = MOVEMENT, MAGNITUDE = ("movement", "magnitude")


@dataclasses.dataclass(frozen=True)
class PruningConfig:
    """Pruning settings for the kernels in the encoder's layers.

    The default schedule is rounded from the published command for SQuAD: one warm-up before it, and two after.

    Attributes:
      kind: weight score, `movement` or `magnitude`; empty prunes nothing.
      remaining: share of non-zero weights at the end.
      start_share: share of the run's steps before pruning starts.
      end_share: share of the run's steps after which pruning ends, with `remaining` weights.
    """

    kind: str = setting("", choices=KINDS)
    remaining: float = setting(0.15, above=0, below=1, needs="kind")
    start_share: float = setting(0.1, least=0, below=1, needs="kind")
    end_share: float = setting(0.8, above=0, most=1, needs="kind")

    def __post_init__(self):
        check(self, "pruning")
        if self.start_share >= self.end_share:
            raise UserError(
                f"pruning.start_share={self.start_share} must be below pruning.end_share={self.end_share}; lower it"
            )

    def remaining_at(self, step: jax.Array | int, steps: int) -> jax.Array:
        """Return the share of remaining weights at a step, counted from 0, in a run with `steps` steps; float32 []."""
        start, end = self.start_share * steps, self.end_share * steps
        # Clipped, the cubic gives 1 before pruning starts and `remaining` after it ends.
        progress = jnp.clip((jnp.asarray(step, jnp.float32) - start) / (end - start), 0.0, 1.0)
        return self.remaining + (1.0 - self.remaining) * (1.0 - progress) ** 3

    def has_ended(self, step: int, steps: int) -> bool:
        """Return whether pruning is complete after `step` of `steps` steps."""
        return not self.kind or step >= self.end_share * steps


def is_pruned(path: str) -> bool:
    """Return whether a path belongs to a prunable kernel, one in the encoder's layers."""
    return path.startswith("encoder/layers/") and path.endswith("/kernel")


def is_score(path: str) -> bool:
    """Return whether a path belongs to pruning scores."""
    return path.startswith(f"{ROOT}/")


def add_scores(config: PruningConfig, params: dict, frozen: tuple[str, ...], is_adapted: Callable[[str], bool]) -> dict:
    """Return params with zero-initialized scores added if scores are learned.

    Args:
      config: pruning settings.
      params: the params of a model.
      frozen: patterns of frozen params.
      is_adapted: whether a kernel path has LoRA factors (`bertjax.training.lora`), and so a gradient.

    Raises:
      UserError: a kernel is frozen, so that its scores would have no gradient, or the scores are frozen.
    """
    if config.kind != MOVEMENT:
        return params
    flat = cast(dict[str, Any], flatten_dict(params, sep="/"))
    for path in filter(is_pruned, list(flat)):
        without_gradient = path if matches_any(frozen, path) and not is_adapted(path) else ""
        if without_gradient or matches_any(frozen, score := f"{ROOT}/{path}"):
            raise UserError(
                f"optimizer.frozen={list(frozen)} would freeze {without_gradient or score}, and "
                f"pruning.kind={MOVEMENT} learns from its gradient; freeze other parameters, or set "
                f"pruning.kind={MAGNITUDE}"
            )
        flat[score] = jnp.zeros_like(flat[path])
    return unflatten_dict(flat, sep="/")


def pruned(config: PruningConfig, params: dict, step: jax.Array | int, steps: int) -> dict:
    """Set the kernel weights with the lowest scores to 0, and remove the scores from the params.

    For each layer, the number of remaining weights in a kernel is rounded to the nearest integer. Ties with the lowest
    remaining score also remain.
    """
    if not config.kind:
        return params
    flat = cast(dict[str, Any], flatten_dict(params, sep="/"))
    kept = {path: leaf for path, leaf in flat.items() if not is_score(path)}
    remaining = config.remaining_at(step, steps)
    for path in filter(is_pruned, kept):
        kernel, is_learned = kept[path], config.kind == MOVEMENT
        scores = flat[f"{ROOT}/{path}"] if is_learned else jnp.abs(kernel)
        kept[path] = kernel * _mask(jax.lax.stop_gradient(scores), remaining)
        if is_learned:  # straight-through: the value is 0, the gradient goes to the scores
            kept[path] += jax.lax.stop_gradient(kernel) * (scores - jax.lax.stop_gradient(scores))
    return unflatten_dict(kept, sep="/")


def _mask(scores: jax.Array, share: jax.Array) -> jax.Array:
    """Return 1.0 for the highest scores in each layer and 0.0 elsewhere, float32 [L, ...] like the scores.

    A binary search over the 32 bits finds the lowest remaining score. For a stack of 6 x 384 x 1536 scores on two cores
    this takes 0.13 s, a sort 1.3 s.
    """
    axes = tuple(range(1, scores.ndim))
    count = jnp.round(share * (scores.size // len(scores))).astype(jnp.int32)
    bits = jax.lax.bitcast_convert_type(jnp.where(scores == 0.0, 0.0, scores), jnp.uint32)  # -0.0 becomes 0.0
    ordered = jnp.where(bits >> 31, ~bits, bits | jnp.uint32(1 << 31))  # unsigned integers in the order of the floats

    def narrow(place: jax.Array, lowest: jax.Array) -> jax.Array:  # set the next bit if enough scores stay above
        higher = lowest | (jnp.uint32(1 << 31) >> place.astype(jnp.uint32))
        is_low_enough = jnp.sum(ordered >= higher, axis=axes, keepdims=True) >= count
        return jnp.where(is_low_enough, higher, lowest)

    lowest = jax.lax.fori_loop(0, 32, narrow, jnp.zeros((len(scores), *[1] * len(axes)), jnp.uint32))
    return (ordered >= lowest).astype(jnp.float32)


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
