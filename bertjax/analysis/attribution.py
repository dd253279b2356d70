"""Token contributions to one prediction: attention rollout and integrated gradients.

**Attention rollout** (Abnar & Zuidema, 2020, arXiv 2005.00928) follows attention through all layers down to the tokens,
as if layers only mixed states. It uses no gradient and is the same for every prediction.

**Integrated gradients** (Sundararajan et al., 2017, section 3, arXiv 1703.01365) explain the difference between the
predictions for a sentence x and a baseline x'. A token's attribution is (x - x') times the integrated gradient along
the straight line from x' to x. The attributions add up to the difference (completeness), which is checked.

- x is the output of the embedding layer: word, position and segment embeddings, added and normed.
- x' is the same row with [MASK] in place of every token except special ones, which therefore get no attribution. The
  model has learned to read [MASK] as an unknown token.
- A token's attribution is summed over its embedding channels.
- The integral uses Gauss-Legendre quadrature on equal panels. Panels are halved until the attributions add up to the
  difference with a small enough gap, or until `PANELS` is reached. Small enough means at most `TOLERANCE` times the
  summed absolute attributions, plus `ROUNDING`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.models.config import EncoderConfig
from bertjax.objectives.base import Arrays

# Largest gap that counts as complete: relative to the sum of absolute attributions, and absolute for float32 rounding.
TOLERANCE, ROUNDING = 0.01, 1e-4
# Gradients per panel, and the maximum number of panels.
NODES, PANELS = 16, 64


def rollout(attention_LHTT: np.ndarray) -> np.ndarray:
    """Return the rollout after each layer; float64 [L, T, T], where row q holds the token shares of state q.

    Heads are averaged, the residual connection adds the identity, rows are normalized, and each layer is multiplied by
    the layers below it (samiraabnar/attention_flow, `compute_joint_attention`).

    Args:
      attention_LHTT: attention weights of one example.
    """
    mean_LTT = attention_LHTT.astype(np.float64).mean(axis=1)
    with_residual_LTT = mean_LTT + np.eye(mean_LTT.shape[-1])
    with_residual_LTT /= with_residual_LTT.sum(axis=-1, keepdims=True)
    joint = [with_residual_LTT[0]]
    for layer_TT in with_residual_LTT[1:]:
        joint.append(layer_TT @ joint[-1])
    return np.stack(joint)


class Attribution(NamedTuple):
    """Integrated gradients for one batch.

    Attributes:
      tokens_BT: attribution per token; float64.
      prediction_BN: prediction per example; float64.
      baseline_BN: prediction for its baseline; float64.
      gap_BN: |sum of attributions - (prediction - baseline)|.
      tolerance_BN: largest gap that counts as complete.
      panels: number of quadrature panels used.
    """

    tokens_BT: np.ndarray
    prediction_BN: np.ndarray
    baseline_BN: np.ndarray
    gap_BN: np.ndarray
    tolerance_BN: np.ndarray
    panels: int

    @property
    def is_complete(self) -> bool:
        """Whether each example's attributions add up to its difference, within the tolerance."""
        return bool(np.all(self.gap_BN <= self.tolerance_BN))


# (inputs [B, T, E], *arguments) -> predictions [B, N]; an input influences only the prediction of its own example.
Predict = Callable[..., jax.Array]


def integrated_gradients(
    predict: Predict,
    inputs_BTE: jax.Array,
    baseline_BTE: jax.Array,
    examples_BT: np.ndarray,
    slots: int,
    *arguments: Any,
) -> Attribution:
    """Return integrated gradients of predictions with respect to their inputs.

    Args:
      predict: see `Predict`; compiled once per function and shape.
      inputs_BTE: the inputs.
      baseline_BTE: the inputs to compare with.
      examples_BT: int, example number per token, 0 = padding.
      slots: N.
      arguments: further arguments of `predict`, such as parameters and batch.
    """
    jitted, gradient = _compiled(predict)
    prediction_BN, baseline_BN = (
        np.asarray(jitted(each, *arguments), np.float64) for each in (inputs_BTE, baseline_BTE)
    )
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    # `leggauss` integrates over [-1, 1]; the path runs over [0, 1].
    nodes, weights = (nodes + 1.0) / 2.0, weights / 2.0
    panels = 1
    while True:
        # All panels are computed again after halving: their nodes have moved. Panels are added in float64.
        tokens_BT = np.zeros(examples_BT.shape)
        for panel in range(panels):
            at = ((nodes + panel) / panels).astype(np.float32), (weights / panels).astype(np.float32)
            tokens_BT += np.asarray(gradient(*at, inputs_BTE, baseline_BTE, *arguments), np.float64)
        of_example_NBT = [tokens_BT * (examples_BT == n + 1) for n in range(slots)]
        sums_BN, sizes_BN = (np.sum(values, axis=-1).T for values in (of_example_NBT, np.abs(of_example_NBT)))
        gap_BN = np.abs(sums_BN - (prediction_BN - baseline_BN))
        tolerance_BN = TOLERANCE * sizes_BN + ROUNDING
        result = Attribution(tokens_BT, prediction_BN, baseline_BN, gap_BN, tolerance_BN, panels)
        if result.is_complete or panels >= PANELS:
            return result
        panels *= 2


@functools.lru_cache(maxsize=16)
def _compiled(predict: Predict) -> tuple[Callable, Callable]:
    """Return jitted `predict`, and one panel of the integral: (nodes, weights, inputs, baseline, ...) -> [B, T]."""

    def part(nodes, weights, inputs_BTE, baseline_BTE, *arguments):
        difference_BTE = inputs_BTE - baseline_BTE

        def step(total_BTE, node_and_weight):
            node, weight = node_and_weight
            point_BTE = baseline_BTE + node * difference_BTE
            # Examples do not influence each other, so the gradient of the sum is the gradient of each prediction.
            gradient_BTE = jax.grad(lambda x_BTE: predict(x_BTE, *arguments).sum())(point_BTE)
            return total_BTE + weight * gradient_BTE, None

        total_BTE, _ = jax.lax.scan(step, jnp.zeros_like(inputs_BTE), (nodes, weights))
        return jnp.sum(total_BTE * difference_BTE, axis=-1)

    return jax.jit(predict), jax.jit(part)


def embedded(config: EncoderConfig, params: dict, batch: Arrays) -> jax.Array:
    """Return the output of the embedding layer, float32 [B, T, E], or [B, T, D] with trigrams.

    Args:
      config: the architecture.
      params: parameters with the root `encoder`.
      batch: the core batch.
    """
    inputs = (batch[name] for name in ("tokens_BT", "positions_BT", "segments_BT"))
    embeddings = {"params": params["encoder"]["embeddings"]}
    return config.embeddings.layer(config).apply(embeddings, *inputs, None, batch["examples_BT"])
