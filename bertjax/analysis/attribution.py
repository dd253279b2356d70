"""How much each token contributes to one number that a model predicts: rollout and integrated gradients.

**Attention rollout** (Abnar & Zuidema, 2020, arXiv 2005.00928) follows the attention of all layers down to the tokens,
as if states were only mixed. It uses no gradient and is the same for every prediction.

**Integrated gradients** (Sundararajan et al., 2017, section 3, arXiv 1703.01365) attribute the difference of a
prediction between a sentence and a baseline to the tokens: (x - x') times the integral of the gradient along the
straight line from the baseline x' to x. Their sum is that difference (completeness), which is checked.

- x is the output of the embedding layer: the sum of word, position and segment embeddings after its norm.
- x' is the same row with [MASK] in place of every token but the special ones, which therefore have no attribution.
  The model has learned to read [MASK] as a token that it does not know.
- The attribution of a token is the sum over the channels of its embedding.
- The integral is computed by Gauss-Legendre quadrature on panels of equal length. The panels are halved until the gap
  between the sum of the attributions and the difference is at most `TOLERANCE` of the sum of their absolute values plus
  `ROUNDING`, or `PANELS` is reached.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.models.config import EncoderConfig
from bertjax.models.layers import Embeddings
from bertjax.objectives.base import Arrays

# Largest gap that counts as complete: a share of the attributions' absolute values, and what float32 rounds off.
TOLERANCE, ROUNDING = 0.01, 1e-4
# Gradients of a panel, and the most panels.
NODES, PANELS = 16, 64


def rollout(attention_LHTT: np.ndarray) -> np.ndarray:
    """Return the rollout after each layer; float64 [L, T, T], row q for the shares of the tokens in state q.

    Heads are averaged, the residual connection adds the identity, rows are normalized, and each layer is multiplied by
    those below it (samiraabnar/attention_flow, `compute_joint_attention`).

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
    """Integrated gradients of a batch.

    Attributes:
      tokens_BT: attribution of each token; float64.
      prediction_BN: the prediction for each example; float64.
      baseline_BN: the prediction for its baseline; float64.
      gap_BN: |sum of the attributions - (prediction - baseline)|.
      tolerance_BN: the largest gap that counts as complete.
      panels: number of panels that were used.
    """

    tokens_BT: np.ndarray
    prediction_BN: np.ndarray
    baseline_BN: np.ndarray
    gap_BN: np.ndarray
    tolerance_BN: np.ndarray
    panels: int

    @property
    def is_complete(self) -> bool:
        """Whether the attributions of every example add up to its difference, within the tolerance."""
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
    """Return the integrated gradients of predictions with respect to their inputs.

    Args:
      predict: see `Predict`; compiled once per function and shape.
      inputs_BTE: the inputs.
      baseline_BTE: the inputs that the predictions are compared with.
      examples_BT: int, the example of each token, 0 = padding.
      slots: N.
      arguments: further arguments of `predict`, such as parameters and batch.
    """
    jitted, gradient = _compiled(predict)
    prediction_BN, baseline_BN = (
        np.asarray(jitted(each, *arguments), np.float64) for each in (inputs_BTE, baseline_BTE)
    )
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    nodes, weights = (nodes + 1.0) / 2.0, weights / 2.0
    panels = 1
    while True:
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
    """Return `predict`, and the part of the integral at nodes: (nodes, weights, inputs, baseline, ...) -> [B, T]."""

    def part(nodes, weights, inputs_BTE, baseline_BTE, *arguments):
        difference_BTE = inputs_BTE - baseline_BTE

        def step(total_BTE, node_and_weight):
            node, weight = node_and_weight
            point_BTE = baseline_BTE + node * difference_BTE
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
    return Embeddings(config).apply(embeddings, *inputs, None, batch["examples_BT"])
