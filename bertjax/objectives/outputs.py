"""Model predictions for a batch, per example, token, pair or row."""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from bertjax.data.labeled.base import Record


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Output:
    """Predictions for a batch.

    Attributes:
      array: [B, N, ...] per example, [B, T, ...] per token, [B, N / 2, ...] per pair of examples, or [B, ...] per row.
        Layers and heads are later axes: attention maps and all layers' hidden states are per token, [B, T, L, ...].
      per: `example`, `token`, `pair` or `row`.
    """

    array: jax.Array
    per: str = dataclasses.field(metadata={"static": True})


def is_real(per: str, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a mask of the output elements that are not padding: bool, [B, N], [B, T], [B, N / 2] or [B]."""
    # Empty slots have example id -1, padding tokens have example number 0.
    is_example_BN = batch["example_ids_BN"] >= 0
    masks: dict[str, np.ndarray] = {
        "example": is_example_BN,
        "token": batch["examples_BT"] > 0,
        "pair": is_example_BN[:, ::2],
        "row": np.any(is_example_BN, axis=1),
    }
    return masks[per]


def regroup(outputs: Mapping[str, Output], batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return outputs without padding, flattened over rows: [M, ...] per example, [tokens, ...] per token.

    Args:
      outputs: predictions, copied to the host.
      batch: the core batch that they were computed from.
    """
    return {name: np.asarray(output.array)[is_real(output.per, batch)] for name, output in outputs.items()}


@dataclasses.dataclass(frozen=True)
class Sample:
    """One example for people to read: its text, and each question's answer and model guesses."""

    text: str
    answers: tuple[str, ...]
    guesses: tuple[tuple[str, ...], ...]


# (record, sum, weight): a metric is the ratio of the totals.
RecordScores = list[tuple[Record, float, float]]
