"""Arrays that a model predicts for a batch, and whether they are per example, token, pair or row."""

import dataclasses
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import jax
import numpy as np

from bertjax.data.examples import Ragged
from bertjax.data.labeled.base import Record


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Output:
    """Predictions for a batch.

    Attributes:
      array: [B, N, ...] per example, [B, T, ...] per token, [B, N / 2, ...] per pair of examples, or [B, ...] per row.
        Layers and heads are later axes: attention maps and hidden states of all layers are per token, [B, T, L, ...].
      per: `example`, `token`, `pair` or `row`.
    """

    array: jax.Array
    per: str = dataclasses.field(metadata={"static": True})


def is_real(per: str, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return which elements of an output are not padding: bool, [B, N], [B, T], [B, N / 2] or [B]."""
    is_example_BN = batch["example_ids_BN"] >= 0
    return {
        "example": is_example_BN,
        "token": batch["examples_BT"] > 0,
        "pair": is_example_BN[:, ::2],
        "row": is_example_BN.any(axis=1),
    }[per]


def regroup(outputs: Mapping[str, Output], batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return outputs without padding, flattened over rows: [M, ...] per example, [tokens, ...] per token.

    Args:
      outputs: predictions, copied to the host.
      batch: the core batch that they were computed from.
    """
    return {name: np.asarray(output.array)[is_real(output.per, batch)] for name, output in outputs.items()}


@dataclasses.dataclass(frozen=True)
class Sample:
    """One example as a person reads it: the text, and for each question the answer and the model's guesses."""

    text: str
    answers: tuple[str, ...]
    guesses: tuple[tuple[str, ...], ...]


# (record, sum, weight): a metric is the ratio of the totals.
RecordScores = list[tuple[Record, float, float]]


@runtime_checkable
class ScoredByRecord(Protocol):
    """An objective with metrics that are means over the records of a labeled file; `compare` draws records."""

    def scores(self, outputs: dict, examples: Ragged, records: list[Record]) -> dict[str, RecordScores]:
        """Host: return such metrics by record. The arguments are those of `Objective.score`."""
